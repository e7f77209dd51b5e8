//! Bytes of a commit as text.
//!
//! The `encoding` header decides; without one, or with one that nobody knows, the bytes are UTF-8 if
//! they can be and Latin-1 if not. Text goes where NUL cannot, so NUL becomes U+2400.

use encoding_rs::Encoding;

/// What stands for NUL.
const SYMBOL_FOR_NUL: char = '\u{2400}';

/// A decoded text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::handler::git) struct Decoded {
    /// The text.
    pub(in crate::handler::git) text: String,
    /// The text stands for exactly these bytes: nothing was guessed, replaced or left out.
    pub(in crate::handler::git) exact: bool,
}

/// How the text of one commit is encoded.
#[derive(Debug, Clone, Copy)]
pub(in crate::handler::git) enum Charset {
    /// Said to be UTF-8, or nothing is said.
    Utf8,
    /// Every byte is the character of its number.
    Latin1,
    /// Another one that is known.
    Known(&'static Encoding),
    /// Something is said that nobody knows.
    Unknown,
}

impl Charset {
    /// The meaning of an `encoding` header, or of none.
    pub(in crate::handler::git) fn of(header: Option<&[u8]>) -> Self {
        let Some(label) = header else { return Self::Utf8 };
        let lower = label.trim_ascii().to_ascii_lowercase();
        if matches!(&*lower, b"iso-8859-1" | b"iso8859-1" | b"iso_8859-1" | b"latin1" | b"latin-1")
        {
            return Self::Latin1;
        }
        match Encoding::for_label(&lower) {
            Some(known) if known == encoding_rs::UTF_8 => Self::Utf8,
            // The names of headers are ASCII, so UTF-16 cannot be meant for all of it.
            Some(known) if known.is_ascii_compatible() => Self::Known(known),
            _ => Self::Unknown,
        }
    }

    /// Decodes bytes.
    pub(in crate::handler::git) fn decode(self, bytes: &[u8]) -> Decoded {
        let (text, exact) = match self {
            Self::Utf8 => utf8_or_latin1(bytes),
            Self::Latin1 => (latin1(bytes), true),
            Self::Known(encoding) => {
                let (text, had_errors) = encoding.decode_without_bom_handling(bytes);
                (text.into_owned(), !had_errors)
            }
            Self::Unknown => (utf8_or_latin1(bytes).0, bytes.is_ascii()),
        };
        if text.contains('\0') {
            return Decoded { text: text.replace('\0', &SYMBOL_FOR_NUL.to_string()), exact: false };
        }
        Decoded { text, exact }
    }
}

fn utf8_or_latin1(bytes: &[u8]) -> (String, bool) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), true),
        Err(_) => (latin1(bytes), false),
    }
}

fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(header: Option<&str>, bytes: &[u8]) -> (String, bool) {
        let decoded = Charset::of(header.map(str::as_bytes)).decode(bytes);
        (decoded.text, decoded.exact)
    }

    #[test]
    fn the_header_decides() {
        assert_eq!(decode(None, "é".as_bytes()), ("é".to_owned(), true));
        assert_eq!(decode(None, b"\xe9"), ("é".to_owned(), false));
        assert_eq!(decode(Some("UTF-8"), b"\xe9"), ("é".to_owned(), false));
        assert_eq!(decode(Some("ISO-8859-1"), b"\xe9\x80"), ("é\u{80}".to_owned(), true));
        assert_eq!(decode(Some("windows-1252"), b"\x80"), ("€".to_owned(), true));
        assert_eq!(decode(Some("EUC-JP"), b"\xc6\xfc\xcb\xdc"), ("日本".to_owned(), true));
        assert_eq!(decode(Some("EUC-JP"), b"\xff"), ("\u{fffd}".to_owned(), false));
        assert_eq!(decode(Some("klingon"), b"abc"), ("abc".to_owned(), true));
        assert_eq!(decode(Some("klingon"), "é".as_bytes()), ("é".to_owned(), false));
        assert_eq!(decode(Some("UTF-16"), b"abc"), ("abc".to_owned(), true));
        assert_eq!(decode(None, b"a\0b"), ("a\u{2400}b".to_owned(), false));
    }
}
