//! How much goes into one statement: a group is cut into pieces by the bytes that it brings.
//!
//! A call has a deadline, and a link has a speed: what is too much for it gets no answer, is asked for
//! again by the same crowd, and gets none again. So a piece of several that got no answer makes the
//! next ones half as large, down to [`LEAST`], and a full one that was answered with time to spare makes
//! them twice as large again. A single item goes alone, however large it is.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::ledger::LedgerError;

/// The most bytes of payloads or results in one statement.
const MOST: usize = 16 << 20;

/// Pieces do not get smaller: a link that takes longer than a call for this is of no use.
const LEAST: usize = 128 << 10;

/// What took less than a call's time divided by this may be twice as large.
const TIME_TO_SPARE: u32 = 4;

/// The sizes of pieces.
pub(super) struct Pieces {
    limit: AtomicUsize,
    call_timeout: Duration,
}

impl Pieces {
    pub(super) fn new(call_timeout: Duration) -> Self {
        Self { limit: AtomicUsize::new(MOST), call_timeout }
    }

    /// Cuts a group into pieces: each as large as it may be when it is taken.
    pub(super) fn cut<T, F: Fn(&T) -> usize>(&self, group: Vec<T>, bytes: F) -> Cut<'_, T, F> {
        Cut { pieces: self, rest: group.into_iter(), next: None, bytes }
    }

    /// Takes note of what became of a piece that was begun at `begun`.
    pub(super) fn learn<T, A>(
        &self,
        piece: &[T],
        bytes: impl Fn(&T) -> usize,
        begun: Instant,
        answer: &Result<A, LedgerError>,
    ) {
        let limit = self.limit.load(Ordering::Relaxed);
        let unanswered = matches!(answer, Err(LedgerError::Unavailable { .. }));
        if piece.len() < 2 || !unanswered && limit == MOST {
            return;
        }
        let bytes = piece.iter().map(bytes).sum::<usize>();
        if unanswered && bytes > LEAST {
            self.limit.store(limit.min(bytes / 2).max(LEAST), Ordering::Relaxed);
        }
        let quick = begun.elapsed() < self.call_timeout / TIME_TO_SPARE;
        if answer.is_ok() && quick && bytes > limit / 2 {
            self.limit.store((limit * 2).min(MOST), Ordering::Relaxed);
        }
    }
}

/// A group that is being cut.
pub(super) struct Cut<'a, T, F> {
    pieces: &'a Pieces,
    rest: std::vec::IntoIter<T>,
    next: Option<T>,
    bytes: F,
}

impl<T, F: Fn(&T) -> usize> Iterator for Cut<'_, T, F> {
    type Item = Vec<T>;

    fn next(&mut self) -> Option<Vec<T>> {
        let limit = self.pieces.limit.load(Ordering::Relaxed);
        let first = self.next.take().or_else(|| self.rest.next())?;
        let mut filled = (self.bytes)(&first);
        let mut piece = Vec::with_capacity(1 + self.rest.len());
        piece.push(first);
        for item in self.rest.by_ref() {
            filled = filled.saturating_add((self.bytes)(&item));
            if filled > limit {
                self.next = Some(item);
                break;
            }
            piece.push(item);
        }
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const CALL: Duration = Duration::from_secs(4);

    fn sizes(pieces: &Pieces, group: &[usize]) -> Vec<usize> {
        pieces.cut(group.to_vec(), |bytes| *bytes).map(|piece| piece.len()).collect()
    }

    fn silence() -> Result<(), LedgerError> {
        Err(LedgerError::Unavailable { address: String::new(), message: String::new() })
    }

    #[test]
    fn a_group_is_cut_where_it_gets_too_large() {
        let pieces = Pieces::new(CALL);
        assert_eq!(sizes(&pieces, &[]), [0_usize; 0]);
        assert_eq!(sizes(&pieces, &[0; 256]), [256]);
        assert_eq!(sizes(&pieces, &[8 * MIB, 8 * MIB, 1, 40 * MIB, 1]), [2, 1, 1, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn pieces_get_as_large_as_the_link_can_carry() {
        let (pieces, own) = (Pieces::new(CALL), |bytes: &usize| *bytes);
        let (mut group, begun) = (vec![MIB; 12], Instant::now());
        for left in [6, 3, 1] {
            pieces.learn(&group, own, begun, &silence());
            group = pieces.cut(group, own).next().expect("a piece");
            assert_eq!(group.len(), left);
        }
        // One alone says nothing about groups, and a small group nothing about large ones.
        pieces.learn(&group, own, begun, &silence());
        pieces.learn(&[1, 1], own, begun, &Ok(()));
        pieces.learn(&[1, 1], own, begun, &silence());
        let half = vec![MIB / 2; 12];
        assert_eq!(sizes(&pieces, &half), [3; 4]);
        pieces.learn(&half[..3], own, begun, &Ok(()));
        assert_eq!(sizes(&pieces, &half), [6; 2]);
        // In time, and twice as much would not be.
        tokio::time::advance(CALL / 2).await;
        pieces.learn(&half[..6], own, begun, &Ok(()));
        assert_eq!(sizes(&pieces, &half), [6; 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn pieces_stay_within_their_bounds() {
        let (pieces, begun) = (Pieces::new(CALL), Instant::now());
        let own = |bytes: &usize| *bytes;
        for _ in 0..20 {
            pieces.learn(&[LEAST, LEAST], own, begun, &silence());
        }
        assert_eq!(sizes(&pieces, &[LEAST / 2; 4]), [2, 2]);
        for _ in 0..20 {
            pieces.learn(&[MOST, MOST], own, begun, &Ok(()));
        }
        assert_eq!(sizes(&pieces, &[MOST / 2; 4]), [2, 2]);
    }
}
