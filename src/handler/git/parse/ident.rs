//! Reads the content of an `author` or `committer` header.
//!
//! It follows what git itself reads (`split_ident_line` in its ident.c): the name ends at the first
//! `<`, the address at the first `>` after it, and the date stands behind the last `>` of the line.

use super::text::Charset;
use crate::handler::git::identity::{Identity, When};

/// Bytes of a header that are kept.
const MAX_RAW: usize = 4096;
/// Digits of the shortest zone.
const ZONE_DIGITS: usize = 4;

/// What was read, and whether its texts are exact.
pub(in crate::handler::git) fn identity(line: &[u8], charset: Charset) -> (Identity, bool) {
    let raw = line[..line.len().min(MAX_RAW)].to_vec();
    let Some((name, email)) = name_and_email(line) else {
        let name = charset.decode(raw.trim_ascii());
        let identity = Identity { raw, name: name.text, ..Identity::default() };
        return (identity, name.exact);
    };
    let after = line.iter().rposition(|byte| *byte == b'>').map_or(line.len(), |at| at + 1);
    let (name, email) = (charset.decode(limited(name)), charset.decode(limited(email)));
    let identity = Identity {
        raw,
        name: name.text,
        email: email.text,
        well_formed: line.len() <= MAX_RAW,
        when: when(&line[after..]),
    };
    (identity, name.exact && email.exact)
}

fn limited(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(MAX_RAW)]
}

/// The parts of `name <address>…`.
pub(in crate::handler::git) fn name_and_email(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let open = line.iter().position(|byte| *byte == b'<')?;
    let rest = &line[open + 1..];
    let close = rest.iter().position(|byte| *byte == b'>')?;
    Some((line[..open].trim_ascii_end(), &rest[..close]))
}

/// Reads `1700000000 +0100`.
fn when(text: &[u8]) -> When {
    let text = text.trim_ascii_start();
    let (digits, rest) = text.split_at(count_digits(text));
    let Some(epoch) = number(digits) else { return When::default() };
    let rest = rest.trim_ascii_start();
    let negative = match rest.first() {
        Some(b'-') => true,
        Some(b'+') => false,
        _ => return When { epoch: i64::try_from(epoch).ok(), zone_minutes: None },
    };
    let digits = &rest[1..][..count_digits(&rest[1..])];
    let zone = number(digits).filter(|_| digits.len() >= ZONE_DIGITS).and_then(|zone| {
        // The last two digits are minutes, all before them hours, however many.
        let minutes = i32::try_from((zone / 100).checked_mul(60)?.checked_add(zone % 100)?).ok()?;
        Some(if negative { -minutes } else { minutes })
    });
    When { epoch: i64::try_from(epoch).ok(), zone_minutes: zone }
}

fn count_digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// `None` for no digits; the largest number where they are too many.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let add = |sum: u64, digit: &u8| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Some(digits.iter().fold(0, add))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(line: &[u8]) -> Identity {
        identity(line, Charset::Utf8).0
    }

    fn date(line: &str) -> (Option<i64>, Option<i32>) {
        let when = read(line.as_bytes()).when;
        (when.epoch, when.zone_minutes)
    }

    #[test]
    fn usual_identities() {
        let it = read(b"A U Thor <a@example.com> 1700000000 +0130");
        assert_eq!((&*it.name, &*it.email), ("A U Thor", "a@example.com"));
        assert!(it.well_formed && it.when.is_valid());
        assert_eq!((it.when.epoch, it.when.zone_minutes), (Some(1_700_000_000), Some(90)));
    }

    #[test]
    fn odd_identities() {
        let it = read(b"<> 0 +0000");
        assert_eq!((&*it.name, &*it.email, it.when.epoch), ("", "", Some(0)));
        let it = read(b"a > b <c> d> 5 -0100");
        assert_eq!((&*it.name, &*it.email), ("a > b", "c"));
        assert_eq!(date("a > b <c> d> 5 -0100"), (Some(5), Some(-60)));
        let it = read(b"no brackets 5 +0000");
        assert_eq!(
            (&*it.name, it.well_formed, it.when.epoch),
            ("no brackets 5 +0000", false, None)
        );
        assert!(!read(b"unclosed <x 5 +0000").well_formed);
        assert!(!read(b"").well_formed);
    }

    #[test]
    fn odd_dates() {
        assert_eq!(date("A <a@x> "), (None, None));
        assert_eq!(date("A <a@x> soon"), (None, None));
        assert_eq!(date("A <a@x> -5 +0000"), (None, None));
        assert_eq!(date("A <a@x> 5"), (Some(5), None));
        assert_eq!(date("A <a@x> 5 0000"), (Some(5), None));
        assert_eq!(date("A <a@x> 5 +530"), (Some(5), None));
        assert_eq!(date("A <a@x> 5 +0545"), (Some(5), Some(345)));
        assert_eq!(date("A <a@x> 5 -3407"), (Some(5), Some(-2047)));
        assert_eq!(date("A <a@x> 5 -13068837"), (Some(5), Some(-7_841_317)));
        assert_eq!(date("A <a@x> 99999999999999999999 +0000"), (None, Some(0)));
        let far = read(b"A <a@x> 253402300800 +0000").when;
        assert!(far.epoch.is_some() && !far.is_valid());
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(&read(&line).raw, &line);
        }

        #[test]
        fn what_was_written_is_read(epoch in 0..i64::MAX, hours in 0..99_i32, minutes in 0..60_i32) {
            let line = format!("N <e> {epoch} -{hours:02}{minutes:02}");
            prop_assert_eq!(date(&line), (Some(epoch), Some(-(hours * 60 + minutes))));
        }
    }
}
