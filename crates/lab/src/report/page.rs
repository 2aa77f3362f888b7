//! Page: the frame of a report, one HTML file that needs nothing else.

use std::fmt::Write as _;

/// A page as it grows: sections in order, then [`finish`](HtmlPage::finish).
pub(super) struct HtmlPage {
    title: String,
    lead: String,
    sections: Vec<(String, String)>,
}

impl HtmlPage {
    /// A page with this heading, and HTML below it.
    pub(super) fn new(title: &str, lead: String) -> HtmlPage {
        HtmlPage { title: title.to_owned(), lead, sections: Vec::new() }
    }

    /// Adds a section with this heading and HTML.
    pub(super) fn section(&mut self, heading: impl Into<String>, html: String) {
        self.sections.push((heading.into(), html));
    }

    pub(super) fn finish(self) -> String {
        let title = escape(&self.title);
        let mut html = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
             <style>\n{}</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#main\">Skip to the results</a>\n\
             <header>\n<h1>{title}</h1>\n{}</header>\n",
            include_str!("style.css"),
            self.lead
        );
        if self.sections.len() > 1 {
            html.push_str("<nav aria-label=\"Sections\">\n<ul>\n");
            for (number, (heading, _)) in self.sections.iter().enumerate() {
                // Writing to a String cannot fail.
                let _ = writeln!(html, "<li><a href=\"#s{number}\">{}</a></li>", escape(heading));
            }
            html.push_str("</ul>\n</nav>\n");
        }
        html.push_str("<main id=\"main\">\n");
        for (number, (heading, body)) in self.sections.iter().enumerate() {
            let heading = escape(heading);
            let _ = writeln!(
                html,
                "<section aria-labelledby=\"s{number}\">\n<h2 id=\"s{number}\">{heading}</h2>\n{body}</section>"
            );
        }
        html.push_str("</main>\n</body>\n</html>\n");
        html
    }
}

/// A cell of a table.
pub(super) enum TableCell {
    Text(String),
    /// A sentence, which may be broken.
    Words(String),
    /// Marked by a class of the style sheet.
    Marked(String, &'static str),
}

impl<T: Into<String>> From<T> for TableCell {
    fn from(text: T) -> TableCell {
        TableCell::Text(text.into())
    }
}

/// A table with a caption that says what it is.
pub(super) fn table(caption: &str, heads: &[&str], lines: &[Vec<TableCell>]) -> String {
    let mut html = format!(
        "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\"><table>\n<caption>{0}</caption>\n<thead><tr>",
        escape(caption)
    );
    for (column, head) in heads.iter().enumerate() {
        let of_words =
            lines.first().is_some_and(|line| matches!(line.get(column), Some(TableCell::Words(_))));
        let class = if of_words { " class=\"words\"" } else { "" };
        // Writing to a String cannot fail.
        let _ = write!(html, "<th scope=\"col\"{class}>{}</th>", escape(head));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for line in lines {
        html.push_str("<tr>");
        for cell in line {
            let _ = match cell {
                TableCell::Text(text) => write!(html, "<td>{}</td>", escape(text)),
                TableCell::Words(text) => write!(html, "<td class=\"words\">{}</td>", escape(text)),
                TableCell::Marked(text, class) => write!(html, "<td class=\"{class}\">{}</td>", escape(text)),
            };
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table></div>\n");
    html
}

/// Text as HTML shows it.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let mut page = HtmlPage::new("<b>", String::new());
        page.section("a & b", table("\"x\"", &["<i>"], &[vec!["<script>".into()]]));
        let html = page.finish();
        assert!(!html.contains("<script") && !html.contains("<i>") && !html.contains("<b>"), "{html}");
        assert!(html.contains("a &amp; b"));
    }
}
