//! Plot: points against CPUs or time, as inline SVG.
//!
//! # Theory
//! Drawn by `plotters` with fixed colours, so that the SVG stands for itself. The page's style sheet replaces these
//! colours by selectors on the attributes (`[stroke="#0072B2"]`), which beat the attributes: so one drawing serves
//! light and dark. The colours of the series are those of Okabe and Ito, which the colour-blind can tell apart, and each
//! series has a mark of its own besides; of two sides of one thing, one is dashed. The numbers are in the table under each plot.

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use sluice_console::failure::{Failure, Result};

/// One curve.
pub(super) struct Series {
    pub(super) look: CurveStyle,
    pub(super) points: Vec<Point>,
}

/// The marks that tell a curve from others.
#[derive(Clone, Copy)]
pub(super) struct CurveStyle {
    /// One of [`COLOURS`], and the class of the style sheet that has it.
    pub(super) colour: usize,
    mark: usize,
    dashed: bool,
}

impl CurveStyle {
    /// The style of curve `number` in the legend.
    pub(super) fn alone(number: usize) -> CurveStyle {
        CurveStyle { colour: number % COLOURS.len(), mark: number % MARKS.len(), dashed: false }
    }

    /// Where curves of even and odd numbers are the two sides of one thing: a colour for the thing, dashes and a cross for
    /// what it was before.
    pub(super) fn of_a_pair(number: usize) -> CurveStyle {
        let (thing, before) = (number / 2, number.is_multiple_of(2));
        CurveStyle {
            colour: thing % COLOURS.len(),
            mark: if before { CROSS } else { thing % CROSS },
            dashed: before,
        }
    }

    /// Its mark, for the legend.
    pub(super) fn mark(self) -> &'static str {
        MARKS[self.mark]
    }
}

/// A point, with the range that it may lie in.
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) range: Option<(f64, f64)>,
}

/// How the axes are divided.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Axes {
    /// CPUs, each twice the one before; up from 0.
    CpusAndAmount,
    /// CPUs, each twice the one before; amounts, each ten times the one before.
    CpusAndPower,
    /// CPUs, in powers of two; percent from 0 to 100, or to a higher maximum.
    CpusAndPercent,
    /// Nanoseconds, and a percentage that falls to next to nothing, each ten times the one before.
    TimeAndTail,
}

pub(super) struct Plot<'a> {
    pub(super) axes: Axes,
    pub(super) y_label: &'a str,
    pub(super) series: &'a [Series],
}

/// The smallest percentage that is drawn on an axis of powers.
const TAIL_MIN: f64 = 1e-4;
/// Powers of ten of which each has room for a label.
const LABELS_OF_TIME: usize = 6;
/// Points of a curve that get a mark.
const MARKS_MAX: usize = 12;
const SIZE: (u32, u32) = (480, 300);
const INK: RGBColor = RGBColor(0x1B, 0x1F, 0x24);
const AXIS: RGBColor = RGBColor(0x6E, 0x77, 0x81);
const GRID: RGBColor = RGBColor(0xD8, 0xDE, 0xE4);
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x56, 0xB4, 0xE9),
];
const MARKS: [&str; 4] = ["\u{25cf}", "\u{25b2}", "\u{25a0}", "\u{2715}"];
const CROSS: usize = MARKS.len() - 1;
/// Pixels drawn and left out of a dashed curve.
const DASH: (u32, u32) = (7, 5);

impl Axes {
    fn x(self, value: f64) -> f64 {
        if self == Axes::TimeAndTail { value.max(1.0).log10() } else { value.max(1.0).log2() }
    }

    fn y(self, value: f64) -> f64 {
        match self {
            Axes::CpusAndPower => value.max(1.0).log10(),
            Axes::TimeAndTail => value.max(TAIL_MIN).log10(),
            _ => value,
        }
    }

    fn x_text(self, x: f64) -> String {
        match self {
            _ if (x - x.round()).abs() > 0.01 => String::new(),
            Axes::TimeAndTail => time(x.round() as i32),
            _ => format!("{:.0}", x.round().exp2()),
        }
    }

    fn y_text(self, y: f64) -> String {
        match self {
            Axes::CpusAndPower | Axes::TimeAndTail if (y - y.round()).abs() > 0.01 => String::new(),
            Axes::TimeAndTail => format!("{}%", 10f64.powi(y.round() as i32)),
            Axes::CpusAndPower => short(10f64.powf(y)),
            Axes::CpusAndAmount => short(y),
            _ => format!("{y:.0}%"),
        }
    }
}

/// A power of ten, in nanoseconds, as a time: `10 us`.
fn time(power: i32) -> String {
    let unit = ["ns", "us", "ms", "s"][(power / 3).clamp(0, 3) as usize];
    format!("{} {unit}", 10u64.pow((power - 3 * (power / 3).clamp(0, 3)).max(0) as u32))
}

/// A number with a unit prefix: `1.5M`.
pub(super) fn short(number: f64) -> String {
    let (scaled, unit) = match number.abs() {
        n if n >= 1e9 => (number / 1e9, "G"),
        n if n >= 1e6 => (number / 1e6, "M"),
        n if n >= 1e3 => (number / 1e3, "k"),
        _ => (number, ""),
    };
    if scaled.fract().abs() < 0.05 || scaled >= 100.0 {
        format!("{scaled:.0}{unit}")
    } else {
        format!("{scaled:.1}{unit}")
    }
}

impl Plot<'_> {
    /// The drawing as an `<svg>` element. There must be a point: an axis without end takes for ever to divide.
    pub(super) fn svg(&self) -> Result<String> {
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            self.draw(&area).map_err(|error| Failure::Failed(format!("cannot draw a plot: {error}")))?;
        }
        Ok(text)
    }

    fn draw(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
    ) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let axes = self.axes;
        let points = || self.series.iter().flat_map(|series| &series.points);
        let ends = |of: &dyn Fn(&Point) -> f64| {
            points()
                .map(of)
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
        };
        let (left, right) = ends(&|point| axes.x(point.x));
        let (left, right) = match axes {
            // Whole powers of ten: each end has its label.
            Axes::TimeAndTail => (left.floor(), right.ceil().max(left.floor() + 1.0)),
            _ if left < right => (left, right),
            _ => (left - 0.5, right + 0.5),
        };
        let highest = ends(&|point| axes.y(point.range.map_or(point.y, |(_, high)| high.max(point.y)))).1;
        let lowest = ends(&|point| axes.y(point.y)).0;
        let (bottom, top) = match axes {
            Axes::CpusAndPower => (lowest.floor(), highest.ceil().max(lowest.floor() + 1.0)),
            Axes::CpusAndAmount => (0.0, (highest * 1.08).max(1e-9)),
            Axes::CpusAndPercent => (0.0, highest.max(100.0) * 1.04),
            Axes::TimeAndTail => (lowest.floor().min(0.0), 2.1),
        };
        let margin = (right - left) * 0.04;
        // Labels of time are wide: of many powers every second has one.
        let powers = (right - left).round() as usize + 1;
        let labels = if axes == Axes::TimeAndTail && powers > LABELS_OF_TIME { powers / 2 } else { powers };
        let mut chart = ChartBuilder::on(area)
            .margin(6)
            .margin_top(12)
            .margin_right(26)
            .x_label_area_size(46)
            .y_label_area_size(70)
            .build_cartesian_2d(left - margin..right + margin, bottom..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(AXIS)
            .label_style(("sans-serif", 18, &INK))
            .x_desc(if axes == Axes::TimeAndTail { "latency" } else { "CPUs" })
            .y_desc(self.y_label)
            .x_labels(labels)
            .y_labels(5)
            .x_label_formatter(&|x| axes.x_text(*x))
            .y_label_formatter(&|y| axes.y_text(*y))
            .draw()?;
        for series in self.series {
            let colour = COLOURS[series.look.colour];
            let place = |point: &Point| (axes.x(point.x), axes.y(point.y));
            let curve: Vec<_> = series.points.iter().map(place).collect();
            if series.look.dashed {
                let dashes = DashedPathElement::new(curve, DASH.0, DASH.1, colour.stroke_width(2));
                chart.draw_series([dashes])?;
            } else {
                chart.draw_series([PathElement::new(curve, colour.stroke_width(2))])?;
            }
            for point in &series.points {
                if let Some((low, high)) = point.range {
                    let (x, low, high) = (axes.x(point.x), axes.y(low), axes.y(high));
                    chart
                        .draw_series([PathElement::new(vec![(x, low), (x, high)], colour.stroke_width(1))])?;
                }
            }
            // A fine curve gets only some marks to distinguish it.
            let every = series.points.len().div_ceil(MARKS_MAX).max(1);
            let (at, filled) = (series.points.iter().step_by(every).map(place), colour.filled());
            match series.look.mark {
                0 => chart.draw_series(at.map(|at| Circle::new(at, 4, filled)))?,
                1 => chart.draw_series(at.map(|at| TriangleMarker::new(at, 6, filled)))?,
                2 => chart.draw_series(
                    at.map(|at| EmptyElement::at(at) + Rectangle::new([(-4, -4), (4, 4)], filled)),
                )?,
                _ => chart.draw_series(at.map(|at| Cross::new(at, 4, colour.stroke_width(2))))?,
            };
        }
        area.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_a_mark_for_each_point_and_fits_any_width() {
        let points = |scale: f64| {
            [1.0, 2.0, 64.0].map(|x| Point {
                x,
                y: x * scale,
                range: Some((x * scale * 0.9, x * scale * 1.1)),
            })
        };
        let series = [
            Series { look: CurveStyle::alone(0), points: points(1e6).into() },
            Series { look: CurveStyle::alone(1), points: points(2e5).into() },
        ];
        for axes in [Axes::CpusAndAmount, Axes::CpusAndPower, Axes::CpusAndPercent, Axes::TimeAndTail] {
            let svg = Plot { axes, y_label: "ops/s", series: &series }.svg().unwrap();
            assert_eq!(svg.matches("<circle").count(), 3, "{svg}");
            assert!(svg.contains("viewBox") && svg.contains("#0072B2") && svg.contains("#1B1F24"), "{svg}");
        }
    }

    #[test]
    fn a_single_point_can_be_drawn() {
        let one =
            [Series { look: CurveStyle::alone(0), points: vec![Point { x: 1.0, y: 0.0, range: None }] }];
        assert!(Plot { axes: Axes::CpusAndAmount, y_label: "", series: &one }.svg().is_ok());
    }

    #[test]
    fn the_two_sides_of_a_thing_share_its_colour_and_one_is_dashed() {
        let points = || [1.0, 8.0].map(|x| Point { x, y: x, range: None }).into();
        let series = [0, 1, 2].map(|number| Series { look: CurveStyle::of_a_pair(number), points: points() });
        let svg = Plot { axes: Axes::CpusAndAmount, y_label: "", series: &series }.svg().unwrap();
        assert!(svg.matches("#0072B2").count() > 20, "dashes: {svg}");
        assert!(svg.contains("#D55E00") && !svg.contains("#009E73"), "two things: {svg}");
        assert_eq!(
            [0, 1, 2, 3].map(|number| CurveStyle::of_a_pair(number).mark()),
            ["\u{2715}", "\u{25cf}", "\u{2715}", "\u{25b2}"]
        );
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0, 2, 4, 9].map(time), ["1 ns", "100 ns", "10 us", "1 s"]);
        assert_eq!([0.0, 950.0, 1500.0, 2e6, 123.4e6].map(short), ["0", "950", "1.5k", "2M", "123M"]);
    }
}
