//! Escaping for text lines: a value that came from outside must not end a line, colour a terminal
//! or turn the reading direction around.

use std::fmt::{self, Write};

/// Characters that a terminal or a viewer acts on instead of showing them.
fn is_active(c: char) -> bool {
    c.is_control()
        // Line and paragraph separators; marks and overrides of direction (Unicode TR 36).
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{061c}')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Passes text on and escapes what is active.
pub(super) struct Escaped<'a, W>(pub(super) &'a mut W);

impl<W: Write> Write for Escaped<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(is_active) {
            self.0.write_str(&rest[..at])?;
            let mut chars = rest[at..].chars();
            for escaped in chars.next().into_iter().flat_map(char::escape_default) {
                self.0.write_char(escaped)?;
            }
            rest = chars.as_str();
        }
        self.0.write_str(rest)
    }
}

/// The text with what is active escaped.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // A String takes everything.
    let _ = Escaped(&mut out).write_str(text);
    out
}

/// The first `max` bytes of a text, whole characters only.
pub(super) fn cut(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Writes a value after `name=`: quoted where a reader could not tell where it ends.
pub(super) fn write_value(out: &mut impl Write, text: &str) -> fmt::Result {
    let plain = |c: char| !c.is_whitespace() && !matches!(c, '"' | '=' | '\\');
    if !text.is_empty() && text.chars().all(plain) {
        return Escaped(out).write_str(text);
    }
    out.write_char('"')?;
    for part in text.split_inclusive(['"', '\\']) {
        let body = part.trim_end_matches(['"', '\\']);
        Escaped(out).write_str(body)?;
        for quote in part[body.len()..].chars() {
            out.write_char('\\')?;
            out.write_char(quote)?;
        }
    }
    out.write_char('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> String {
        let mut out = String::new();
        write_value(&mut out, text).expect("a String takes everything");
        out
    }

    #[test]
    fn values_are_quoted_only_where_needed() {
        assert_eq!(value("abc-1:2"), "abc-1:2");
        assert_eq!(value(""), "\"\"");
        assert_eq!(value("a b"), "\"a b\"");
        assert_eq!(value(r#"say "hi" \o/"#), r#""say \"hi\" \\o/""#);
        assert_eq!(value("ünïcode"), "ünïcode");
    }

    #[test]
    fn nothing_active_passes() {
        let forged = "a\nERROR\r\x1b[31mx\x07\u{85}\u{9b}\u{202e}\u{2028}";
        let shown = value(forged);
        assert!(!shown.contains(is_active), "{shown:?}");
        assert!(shown.contains(r"\n") && shown.contains(r"\u{1b}") && shown.contains(r"\u{202e}"));
    }

    #[test]
    fn random_text_never_breaks_the_line() {
        for _ in 0..2_000 {
            let raw: [u16; 16] = rand::random();
            let text: String =
                raw.iter().filter_map(|n| char::from_u32(u32::from(*n) % 0x2100)).collect();
            let shown = value(&text);
            assert!(!shown.contains(is_active), "{shown:?}");
        }
    }
}
