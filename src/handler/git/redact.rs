//! What git said, made fit for a log and a stored result: no secrets, no control characters.

use crate::telemetry::escaped;

/// Bytes that are kept, from the end.
const KEPT: usize = 2 * 1024;

/// The text without credentials in URLs and with what acts on a terminal escaped; line ends stay.
pub(super) fn redacted(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let start = text.len().saturating_sub(KEPT);
    let start = (start..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let lines: Vec<String> =
        text[start..].lines().map(|line| escaped(&without_credentials(line))).collect();
    lines.join("\n")
}

/// Replaces what stands between `://` and the `@` of the same word.
fn without_credentials(line: &str) -> String {
    let mut clean = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        clean.push_str(before);
        let end = after.find(|c: char| c.is_whitespace() || "/?#'\"".contains(c));
        let authority = &after[..end.unwrap_or(after.len())];
        let secret = authority.rfind('@').unwrap_or(0);
        if secret > 0 {
            clean.push_str("***");
        }
        clean.push_str(&authority[secret..]);
        rest = &after[authority.len()..];
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_taken_out() {
        let said =
            b"fatal: https://me:s3cret@host/x and ssh://git@h:22/y or http://h/a@b\n\x1b[31m";
        let clean = "fatal: https://***@host/x and ssh://***@h:22/y or http://h/a@b\n\\u{1b}[31m";
        assert_eq!(redacted(said), clean);
    }

    #[test]
    fn only_the_end_is_kept() {
        let said = "é".repeat(KEPT) + "!";
        let kept = redacted(said.as_bytes());
        assert!(kept.len() <= KEPT && kept.ends_with("é!"));
    }
}
