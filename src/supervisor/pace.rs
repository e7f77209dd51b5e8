//! How many tasks have ended lately: a number for the status line, and progress for a drain.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::BootInstant;

/// What "lately" is.
const WINDOW: Duration = Duration::from_secs(60);

/// Two samples are at least this far apart, so that a minute has no more than 60 and a few.
const BETWEEN: Duration = Duration::from_secs(1);

/// Samples of a counter that only rises.
#[derive(Debug, Default)]
pub(super) struct Pace {
    samples: VecDeque<(BootInstant, u64)>,
    last: u64,
}

impl Pace {
    /// The counter stands at `ended`. Whether it has risen since the last look.
    pub(super) fn look(&mut self, ended: u64, now: BootInstant) -> bool {
        let due = self.samples.back().is_none_or(|(at, _)| now.saturating_since(*at) >= BETWEEN);
        if due {
            self.samples.push_back((now, ended));
        }
        // One sample older than the window stays: the count is since then.
        while self.samples.get(1).is_some_and(|(at, _)| now.saturating_since(*at) >= WINDOW) {
            self.samples.pop_front();
        }
        let risen = ended > self.last;
        self.last = ended;
        risen
    }

    /// How much the counter has risen in the last minute.
    pub(super) fn in_the_last_minute(&self) -> u64 {
        self.last - self.samples.front().map_or(self.last, |(_, ended)| *ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_minute_is_counted_and_progress_is_seen_once() {
        let mut pace = Pace::default();
        let mut look = |tenths: u64, ended| {
            let now = BootInstant::from_boot(Duration::from_millis(tenths * 100));
            let risen = pace.look(ended, now);
            (risen, pace.in_the_last_minute(), pace.samples.len())
        };
        assert_eq!(look(0, 0), (false, 0, 1));
        assert_eq!(look(1, 3), (true, 3, 1));
        assert_eq!(look(2, 3), (false, 3, 1));
        for second in 1..=60 {
            assert!(look(second * 10, 3 + second).0);
        }
        assert_eq!(look(610, 63), (false, 63 - 4, 61));
        assert_eq!(look(1_300, 63), (false, 0, 2));
    }
}
