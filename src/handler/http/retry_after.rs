//! The `Retry-After` header of RFC 9110, section 10.2.3: seconds, or a date.

use std::time::Duration;

/// No server may put a task off for longer.
pub(super) const LONGEST: Duration = Duration::from_secs(3600);

/// How long to wait from `now_ms` (milliseconds since the epoch) on; `None` when it cannot be told.
/// Of the three forms of a date only the one that RFC 9110 lets servers send is read.
pub(super) fn parse(value: &str, now_ms: i64) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // More digits than fit are longer than the longest anyway.
        return Some(value.parse().map_or(LONGEST, Duration::from_secs).min(LONGEST));
    }
    let millis = date_ms(value)?.saturating_sub(now_ms).max(0);
    Some(Duration::from_millis(millis.unsigned_abs()).min(LONGEST))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` as milliseconds since the epoch.
fn date_ms(value: &str) -> Option<i64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = value.split_once(", ")?.1.split(' ');
    let day: i64 = number(words.next()?, 1..=31)?;
    let month = words.next()?;
    let month = 1 + MONTHS.iter().position(|name| *name == month)?;
    let year = number(words.next()?, 1970..=9999)?;
    let mut time = words.next()?.split(':');
    let hour = number(time.next()?, 0..=23)?;
    let minute = number(time.next()?, 0..=59)?;
    let second = number(time.next()?, 0..=60)?;
    if words.next()? != "GMT" || words.next().is_some() || time.next().is_some() {
        return None;
    }
    let days = days_from_civil(year, i64::try_from(month).ok()?, day);
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000)
}

fn number(text: &str, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
    text.parse().ok().filter(|number| range.contains(number))
}

/// Days since 1970-01-01; Hinnant, "chrono-Compatible Low-Level Date Algorithms" (2013).
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sun, 06 Nov 1994 08:49:37 GMT.
    const THEN: i64 = 784_111_777_000;

    #[test]
    fn seconds() {
        assert_eq!(parse("120", 0), Some(Duration::from_secs(120)));
        assert_eq!(parse(" 0 ", 0), Some(Duration::ZERO));
        assert_eq!(parse("86400", 0), Some(LONGEST));
        assert_eq!(parse("99999999999999999999999", 0), Some(LONGEST));
    }

    #[test]
    fn dates() {
        let text = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(parse(text, THEN - 1500), Some(Duration::from_millis(1500)));
        assert_eq!(parse(text, THEN + 1), Some(Duration::ZERO), "the past is now");
        assert_eq!(parse(text, 0), Some(LONGEST));
        assert_eq!(date_ms("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(date_ms("Thu, 29 Feb 2024 12:00:00 GMT"), Some(1_709_208_000_000));
    }

    #[test]
    fn nonsense_says_nothing() {
        for text in ["", "soon", "-1", "1.5", "Sun, 06 Foo 1994 08:49:37 GMT", "Sun, 99 Nov 1994"] {
            assert_eq!(parse(text, 0), None, "{text}");
        }
    }
}
