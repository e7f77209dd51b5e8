//! Durations as people write them: `1500ms`, `45s`, `2m`, `1h`, `7d`.
//!
//! A whole number and one unit. A bare number is refused, because nobody can tell its unit.

use std::time::Duration;

use toml::Value;

use super::leaf::{Leaf, Refusal};

/// The units, the largest first, in milliseconds.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// The longest duration, which keeps every sum of a few of them far from an overflow: 10 years.
const MAX_MS: u64 = 10 * 365 * 86_400_000;

const REMEDY: &str = r#"write it like "1500ms" or "45s""#;

/// Reads a whole number with one of the units `ms`, `s`, `m`, `h`, `d`; at most ten years.
///
/// The error is a fragment that says what is wrong with `text` and repeats it.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let trimmed = text.trim();
    let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = trimmed.split_at(digits);
    if !number.is_empty() && unit.is_empty() {
        return Err(format!("{text:?} has no unit"));
    }
    let factor = UNITS.iter().find(|(name, _)| *name == unit.trim_start()).map(|(_, ms)| *ms);
    let (Some(factor), false) = (factor, number.is_empty()) else {
        return Err(format!("{text:?} is not a duration"));
    };
    match number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)) {
        Some(ms) if ms <= MAX_MS => Ok(Duration::from_millis(ms)),
        _ => Err(format!("{text:?} is longer than ten years")),
    }
}

/// Writes a duration so that [`parse_duration`] reads it back, in the largest unit that divides
/// it. What is below a millisecond is cut off.
pub fn format_duration(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if ms == 0 {
        return "0s".to_owned();
    }
    let unit = UNITS.iter().find(|(_, factor)| ms.is_multiple_of(*factor));
    let (name, factor) = unit.copied().unwrap_or(("ms", 1));
    format!("{}{name}", ms / factor)
}

impl Leaf for Duration {
    const KIND: &'static str = "a duration";
    const EXAMPLE: &'static str = "\"45s\"";

    fn from_value(value: &Value) -> Result<Self, Refusal> {
        match value {
            Value::String(text) => match parse_duration(text) {
                Ok(Duration::ZERO) => Err(Refusal::new(
                    format!("{text:?} is no time at all"),
                    "write at least \"1ms\"",
                )),
                Ok(duration) => Ok(duration),
                Err(message) => Err(Refusal::new(message, REMEDY)),
            },
            Value::Integer(number) => {
                let remedy = format!(r#"write "{number}s" for seconds or "{number}ms""#);
                Err(Refusal::new(format!("{number} has no unit"), remedy))
            }
            other => {
                Err(Refusal { remedy: REMEDY.to_owned(), ..Refusal::wrong_type::<Self>(other) })
            }
        }
    }

    fn from_env(text: &str) -> Result<Self, Refusal> {
        Self::from_value(&Value::String(text.to_owned()))
    }

    fn to_value(&self) -> Option<Value> {
        Some(Value::String(format_duration(*self)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_read() {
        let ms = |text| parse_duration(text).map(|d| d.as_millis());
        assert_eq!(ms("1500ms"), Ok(1_500));
        assert_eq!(ms("45s"), Ok(45_000));
        assert_eq!(ms("2m"), Ok(120_000));
        assert_eq!(ms("1h"), Ok(3_600_000));
        assert_eq!(ms("7d"), Ok(604_800_000));
        assert_eq!(ms(" 5 s "), Ok(5_000));
        assert_eq!(ms("0s"), Ok(0));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "s", "soon", "-1s", "1.5s", "5", "5x", "5S", "1h30m", "٥s", "5\u{a0}ms x"]
        {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
        assert!(parse_duration("99999999999999999999s").is_err());
        assert!(parse_duration("3651d").is_err());
        assert_eq!(parse_duration("5"), Err("\"5\" has no unit".to_owned()));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut sample = 1_u64;
        for _ in 0..10_000 {
            sample = sample.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040);
            for duration in [
                Duration::from_millis(sample % MAX_MS),
                Duration::from_secs(sample % 100_000),
                Duration::from_secs(sample % 3_000 * 60),
            ] {
                assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
            }
        }
    }

    #[test]
    fn no_text_makes_it_panic() {
        for _ in 0..10_000 {
            let raw: [u32; 4] = rand::random();
            let digits = raw[1] % 100;
            let text: String =
                raw.iter().map(|n| char::from_u32(n % 0x300).unwrap_or('s')).collect();
            let _ = parse_duration(&text);
            let _ = parse_duration(&format!("{digits}{text}"));
        }
    }

    #[test]
    fn the_largest_exact_unit_is_written() {
        assert_eq!(format_duration(Duration::from_secs(604_800)), "7d");
        assert_eq!(format_duration(Duration::from_secs(90)), "90s");
        assert_eq!(format_duration(Duration::from_millis(1_500)), "1500ms");
        assert_eq!(format_duration(Duration::ZERO), "0s");
    }
}
