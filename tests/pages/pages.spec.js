// The rules for every page: it needs nothing else, shows its data, and can be used by everybody.
import { test, expect } from '@playwright/test';
import { readdirSync } from 'node:fs';
import { basename, join } from 'node:path';

const pages = readdirSync(process.env.PAGES).filter((name) => name.endsWith('.html')).map((name) => join(process.env.PAGES, name));
// These two are made of results that never change, so what they look like does not change either.
const fixed = ['report', 'compare'];

const open = (page) => page.evaluate(() => document.querySelectorAll('details').forEach((details) => { details.open = true; }));

for (const path of pages) {
  const name = basename(path, '.html');
  test.describe(name, () => {
    test.beforeEach(async ({ page }) => {
      page.said = [];
      page.asked = [];
      page.on('console', (message) => page.said.push(message.text()));
      page.on('pageerror', (error) => page.said.push(String(error)));
      page.on('request', (request) => page.asked.push(request.url()));
      await page.goto(`file://${path}`);
    });

    test('asks for nothing but itself and complains of nothing', async ({ page }) => {
      await open(page);
      await page.waitForLoadState('networkidle');
      expect(page.asked).toEqual([`file://${path}`]);
      expect(page.said).toEqual([]);
    });

    test('every plot has data inside its frame, a label, and a table', async ({ page }) => {
      await open(page);
      const plots = await page.locator('figure svg').evaluateAll((all) => all.map((svg) => {
        const frame = svg.getBoundingClientRect();
        const marks = [...svg.querySelectorAll('circle, polygon, rect[fill]:not([fill="none"]), polyline')];
        const inside = marks.filter((mark) => {
          const box = mark.getBoundingClientRect();
          return box.left >= frame.left - 1 && box.right <= frame.right + 1 && box.top >= frame.top - 1 && box.bottom <= frame.bottom + 1;
        });
        // Texts that overlap cannot be read.
        const boxes = [...svg.querySelectorAll('text')].map((text) => text.getBoundingClientRect());
        const overlapping = boxes.filter((a, i) => boxes.some((b, j) =>
          i < j && a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1));
        const cut = boxes.filter((box) => box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1);
        return { label: svg.getAttribute('aria-label'), words: boxes.length, marks: marks.length, outside: marks.length - inside.length,
          overlapping: overlapping.length, cut: cut.length };
      }));
      expect(plots.length).toBeGreaterThan(0);
      for (const plot of plots) {
        expect(plot.label, 'a label').toBeTruthy();
        expect(plot.marks, plot.label).toBeGreaterThan(0);
        // The names of both axes, and two labels on each at least.
        expect(plot.words, plot.label).toBeGreaterThanOrEqual(6);
        expect([plot.outside, plot.overlapping, plot.cut], plot.label).toEqual([0, 0, 0]);
      }
      const sections = await page.locator('section:has(figure)').count();
      expect(await page.locator('section:has(figure):has(table)').count()).toBe(sections);
    });

    test('the keyboard reaches every control, and opens what is closed', async ({ page }) => {
      const wanted = () => page.evaluate(() => [...document.querySelectorAll('a[href], summary, [tabindex="0"]')]
        .filter((element) => element.checkVisibility()).length);
      const reached = async () => {
        await page.evaluate(() => { document.activeElement.blur(); window.getSelection().removeAllRanges(); });
        await page.evaluate(() => { document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex'); });
        const seen = await page.evaluate(() => { window.seen = new Set(); return 0; });
        let count = seen;
        for (let press = 0; press < 2000; press++) {
          await page.keyboard.press('Tab');
          const size = await page.evaluate(() => {
            const at = document.activeElement;
            if (at && at !== document.body) window.seen.add(at);
            return at === document.body ? -window.seen.size : window.seen.size;
          });
          if (size <= 0 || size === count) return Math.max(Math.abs(size), count);
          count = size;
        }
        return count;
      };
      expect(await reached()).toBe(await wanted());
      const summary = page.locator('summary').first();
      if (await summary.count() > 0) {
        await summary.focus();
        const outline = await summary.evaluate((element) => getComputedStyle(element).outlineStyle);
        expect(outline).not.toBe('none');
        await page.keyboard.press('Enter');
        expect(await page.locator('details').first().evaluate((details) => details.open)).toBe(true);
        expect(await reached()).toBe(await wanted());
      }
    });

    test('text and curves stand out from what is behind them', async ({ page }, info) => {
      const colours = await page.evaluate(() => {
        const of = (selector, what) => {
          const element = document.querySelector(selector);
          return element && getComputedStyle(element)[what];
        };
        const curves = [...document.querySelectorAll('figure svg circle, figure svg polygon')].map((mark) => getComputedStyle(mark).fill);
        return { paper: of('body', 'backgroundColor'), panel: of('figure', 'backgroundColor'), ink: of('body', 'color'),
          facts: of('.facts', 'color'), link: of('a[href]:not(.skip)', 'color'), words: of('figure svg text', 'fill'), curves: [...new Set(curves)] };
      });
      const luminance = (colour) => {
        const parts = colour.match(/[\d.]+/g).slice(0, 3).map((part) => part / 255)
          .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
      };
      const contrast = (a, b) => {
        const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
        return (high + 0.05) / (low + 0.05);
      };
      expect(luminance(colours.paper) < 0.2).toBe(info.project.name.endsWith('dark'));
      // The bounds of WCAG 2.1, AA: 4.5 for text, 3 for what is drawn.
      for (const text of [colours.ink, colours.facts, colours.link]) {
        if (text) expect(contrast(text, colours.paper)).toBeGreaterThan(4.5);
      }
      expect(contrast(colours.words, colours.panel)).toBeGreaterThan(4.5);
      for (const curve of colours.curves) expect(contrast(curve, colours.panel), curve).toBeGreaterThan(3);
    });

    test('nothing is wider than the screen', async ({ page }) => {
      await open(page);
      const [page_width, screen] = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
      expect(page_width).toBeLessThanOrEqual(screen);
    });

    if (fixed.includes(name)) {
      test('looks as it did', async ({ page }) => {
        await expect(page).toHaveScreenshot(`${name}.png`);
        await page.locator('section:has(figure)').first().scrollIntoViewIfNeeded();
        await page.evaluate(() => document.querySelector('section:has(figure)').scrollIntoView());
        await expect(page).toHaveScreenshot(`${name}-plots.png`);
      });
    }
  });
}
