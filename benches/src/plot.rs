//! The picture of a scenario: bars beside one another, drawn as SVG.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::contender::Contender;
use crate::report::{Number, count};
use crate::{Error, Result, error};

const WIDTH: u32 = 900;
const BAR: u32 = 18;
/// For the caption, the scale and the space around them.
const FRAME: u32 = 80;
const LABELS: u32 = 280;
/// For the half of the last figure of the scale.
const RIGHT: u32 = 40;

/// One diagram.
pub(crate) struct Panel {
    title: String,
    bars: Vec<Bar>,
    logarithmic: bool,
    less_is_better: bool,
}

struct Bar {
    label: String,
    value: f64,
    color: RGBColor,
}

impl Panel {
    /// Each step to the right is ten times as much.
    pub(crate) fn logarithmic(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            bars: Vec::new(),
            logarithmic: true,
            less_is_better: false,
        }
    }

    pub(crate) fn linear(title: impl Into<String>) -> Self {
        Self {
            logarithmic: false,
            ..Self::logarithmic(title)
        }
    }

    /// Figures of which the smaller one is the better one.
    pub(crate) fn cost(title: impl Into<String>) -> Self {
        Self {
            less_is_better: true,
            ..Self::linear(title)
        }
    }

    /// The same, on a logarithmic axis.
    pub(crate) fn logarithmic_cost(title: impl Into<String>) -> Self {
        Self {
            logarithmic: true,
            ..Self::cost(title)
        }
    }

    pub(crate) fn title(&self) -> &str {
        &self.title
    }

    pub(crate) const fn less_is_better(&self) -> bool {
        self.less_is_better
    }

    /// The labels and values of the bars.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&str, f64)> {
        self.bars.iter().map(|bar| (bar.label.as_str(), bar.value))
    }

    pub(crate) fn contender(&mut self, contender: Contender, value: f64) {
        let color = match contender {
            Contender::Ours(_) => RGBColor(31, 119, 180),
            Contender::Peer(..) => RGBColor(148, 148, 148),
            Contender::Raw | Contender::Quorum(_) | Contender::Local => RGBColor(140, 190, 120),
        };
        self.bars.push(Bar {
            label: contender.to_string(),
            value,
            color,
        });
    }

    pub(crate) fn bar(&mut self, label: impl Into<String>, value: f64) {
        self.bars.push(Bar {
            label: label.into(),
            value,
            color: RGBColor(31, 119, 180),
        });
    }

    fn height(&self) -> u32 {
        FRAME + BAR * u32::try_from(self.bars.len()).unwrap_or_default()
    }

    fn place(&self, value: f64) -> f64 {
        if self.logarithmic {
            value.max(f64::MIN_POSITIVE).log10()
        } else {
            value
        }
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Result {
        let values = || {
            self.bars
                .iter()
                .map(|bar| self.place(bar.value))
                .filter(|value| *value > -20.0)
        };
        let most = values().fold(f64::MIN, f64::max);
        let least = if self.logarithmic {
            values().fold(f64::MAX, f64::min).floor() - 0.2
        } else {
            0.0
        };
        // Room for the figure at the end of the longest bar.
        let end = least + (most - least).max(f64::MIN_POSITIVE) * 1.18;
        let bars = self.bars.len();
        let text = |side| {
            let style = ("sans-serif", 15).into_font().into_text_style(area);
            style.pos(Pos::new(side, VPos::Center))
        };
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(24)
            .y_label_area_size(0)
            .margin_left(LABELS)
            .margin_right(RIGHT)
            .build_cartesian_2d(least..end, 0.0..bars.float())
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .x_labels(8)
            .x_label_formatter(&|at| figure(if self.logarithmic { 10_f64.powf(*at) } else { *at }))
            .label_style(("sans-serif", 15))
            .draw()
            .map_err(drawing)?;
        for (number, bar) in self.bars.iter().enumerate() {
            let top = bars.float() - number.float();
            let end = self.place(bar.value).max(least);
            let rectangle = Rectangle::new([(least, top - 0.12), (end, top - 0.88)], bar.color.filled());
            let value = EmptyElement::at((end, top - 0.5)) + Text::new(figure(bar.value), (4, 0), text(HPos::Left));
            let name = EmptyElement::at((least, top - 0.5)) + Text::new(bar.label.clone(), (-8, 0), text(HPos::Right));
            chart.draw_series(std::iter::once(rectangle)).map_err(drawing)?;
            chart.draw_series(std::iter::once(value)).map_err(drawing)?;
            chart.draw_series(std::iter::once(name)).map_err(drawing)?;
        }
        Ok(())
    }
}

/// Draws the panels below one another.
pub(crate) fn draw(panels: &[Panel], to: &Path) -> Result {
    let height = panels.iter().map(Panel::height).sum();
    let mut rest = SVGBackend::new(to, (WIDTH, height)).into_drawing_area();
    rest.fill(&WHITE).map_err(drawing)?;
    for panel in panels {
        let (area, below) = rest.split_vertically(panel.height());
        panel.draw(&area)?;
        rest = below;
    }
    rest.present().map_err(drawing)?;
    Ok(())
}

fn figure(value: f64) -> String {
    match value.abs() {
        100.0.. => count(value),
        1.0.. => format!("{value:.1}"),
        _ => format!("{value:.3}")
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned(),
    }
}

fn drawing(failure: impl std::fmt::Display) -> Error {
    error(failure.to_string())
}
