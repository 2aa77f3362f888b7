// Four ways to look at a page. The browser is the system's: none is downloaded.
import { defineConfig } from '@playwright/test';

const way = (name, width, colorScheme) => ({ name, use: { viewport: { width, height: 900 }, colorScheme } });

export default defineConfig({
  testMatch: 'pages.spec.js',
  outputDir: process.env.PAGES_OUTPUT,
  snapshotPathTemplate: '{testDir}/screenshots/{arg}-{projectName}{ext}',
  workers: 1,
  reporter: 'list',
  // Fonts differ a little between machines; a plot that is gone or a table that has slipped is more than this.
  expect: { toHaveScreenshot: { maxDiffPixelRatio: 0.02, threshold: 0.3 } },
  use: { launchOptions: { executablePath: process.env.CHROMIUM, args: ['--no-sandbox'] } },
  projects: [
    way('desk-light', 1280, 'light'),
    way('desk-dark', 1280, 'dark'),
    way('phone-light', 390, 'light'),
    way('phone-dark', 390, 'dark'),
  ],
});
