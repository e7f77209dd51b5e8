//! Values as people and scripts read them: times, ages, and bytes that may be anything.
//!
//! What tasks and producers said is escaped on its way to a terminal, and cut where it is long; in
//! JSON it is whole, as text where it is UTF-8 and as hexadecimal digits under `NAME_hex` where not.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Map, Value};

use crate::telemetry::escaped;

/// The most bytes of one value that are shown to a person.
const SHOWN: usize = 4 * 1024;
/// Bytes in a line of hexadecimal digits.
const HEX_LINE: usize = 32;

/// A time in milliseconds since the Unix epoch as RFC 3339, in UTC: `2025-01-31T23:59:59.123Z`.
pub(super) fn rfc3339(ms: i64) -> String {
    const DAY_MS: i64 = 86_400_000;
    let (year, month, day) = civil(ms.div_euclid(DAY_MS));
    let rest = ms.rem_euclid(DAY_MS);
    let (hour, minute) = (rest / 3_600_000, rest / 60_000 % 60);
    let (second, milli) = (rest / 1_000 % 60, rest % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// Year, month and day of a count of days since 1970-01-01, in the proleptic Gregorian calendar
/// (Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`).
const fn civil(days: i64) -> (i64, i64, i64) {
    // Years that begin on 1 March, so that the leap day is the last one.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

/// A span in two units at most: `3.2s`, `12m 05s`, `3h 04m`, `2d 3h`.
pub(super) fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1}s", duration.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h {:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// Milliseconds for JSON.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// At most `max` characters of a text in one line.
pub(super) fn one_line(text: &str, max: usize) -> String {
    let line = escaped(text);
    match line.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Writes bytes under a title, indented: text as it is, anything else as hexadecimal digits. Of
/// more than [`SHOWN`] bytes the first; `whole` says how to get all.
pub(super) fn write_block(
    out: &mut impl Write,
    title: &str,
    bytes: &[u8],
    whole: &str,
) -> io::Result<()> {
    let unit = if bytes.len() == 1 { "byte" } else { "bytes" };
    writeln!(out, "{title} ({} {unit}):", bytes.len())?;
    let shown = &bytes[..bytes.len().min(SHOWN)];
    match text_of(shown, shown.len() < bytes.len()) {
        Some(text) => {
            for line in text.lines() {
                writeln!(out, "    {}", escaped(line))?;
            }
        }
        None => {
            for line in shown.chunks(HEX_LINE) {
                writeln!(out, "    {}", hex(line))?;
            }
        }
    }
    if shown.len() < bytes.len() {
        writeln!(out, "    … {whole}")?;
    }
    Ok(())
}

/// The text in `bytes`, if it is text; where they were cut, the last character may be incomplete.
fn text_of(bytes: &[u8], is_cut: bool) -> Option<&str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) if is_cut && error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    }
}

/// Puts bytes into a JSON object: under `name` as text, or under `NAME_hex` where they are none.
pub(super) fn insert_bytes(object: &mut Map<String, Value>, name: &str, bytes: Option<&[u8]>) {
    let (key, value) = match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => (name.to_owned(), Value::Null),
        Some((_, Ok(text))) => (name.to_owned(), text.into()),
        Some((bytes, Err(_))) => (format!("{name}_hex"), hex(bytes).into()),
    };
    object.insert(key, value);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // A String takes everything.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (ms, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_709_210_096_789, "2024-02-29T12:34:56.789Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(ms), expected);
        }
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut before = civil(-800_000);
        for days in -799_999..800_000 {
            let (year, month, day) = civil(days);
            let expected = if day > 1 {
                (before.0, before.1, before.2 + 1)
            } else if month > 1 {
                (before.0, before.1 + 1, 1)
            } else {
                (before.0 + 1, 1, 1)
            };
            assert_eq!((year, month, day), expected);
            before = (year, month, day);
        }
    }

    #[test]
    fn spans_have_two_units_at_most() {
        let shown = |seconds| span(Duration::from_secs_f64(seconds));
        assert_eq!(shown(3.24), "3.2s");
        assert_eq!(shown(59.9), "59s");
        assert_eq!(shown(725.0), "12m 05s");
        assert_eq!(shown(11_040.0), "3h 04m");
        assert_eq!(shown(183_600.0), "2d 3h");
    }

    fn block(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        write_block(&mut out, "it", bytes, "more").expect("a Vec takes everything");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn blocks_show_text_or_digits_and_nothing_active() {
        assert_eq!(block(b"a\nb\x1b[1m\n"), "it (8 bytes):\n    a\n    b\\u{1b}[1m\n");
        assert_eq!(block(b"x"), "it (1 byte):\n    x\n");
        assert_eq!(block(&[0, 255]), "it (2 bytes):\n    00ff\n");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let text = format!("x{}", "é".repeat(SHOWN));
        let shown = block(text.as_bytes());
        assert!(shown.contains("é\n    … more"), "{shown}");
    }

    #[test]
    fn json_has_text_or_digits() {
        let mut object = Map::new();
        insert_bytes(&mut object, "a", Some(b"text"));
        insert_bytes(&mut object, "b", Some(&[0, 255]));
        insert_bytes(&mut object, "c", None);
        assert_eq!(Value::from(object).to_string(), r#"{"a":"text","b_hex":"00ff","c":null}"#);
    }
}
