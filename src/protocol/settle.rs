//! From how a run ended to what is recorded of it.

use std::time::Duration;

use bytes::Bytes;

use crate::domain::{Failure, FailureClass, Interruption, RetryPolicy, Verdict};

/// The longest delay that another side may ask for (`Retry-After`), before the policy's own.
const MAX_ASKED_DELAY: Duration = Duration::from_secs(3600);

/// How a run ended.
#[derive(Debug, Clone)]
pub struct RunEnd {
    /// What the handler answered; `None` where it did not answer within the grace period.
    pub answer: Option<Result<Option<Bytes>, Failure>>,
    /// Why it had been asked to stop, if it had.
    pub interrupted: Option<Interruption>,
}

/// What to record. `attempt` counts from 1; `limit` is the time limit that the run had; `random` is
/// uniform in `[0, 1)`.
///
/// An answer of success counts whatever was asked in the meantime: the effect is there. A failure
/// after an interruption is the interruption's, not the task's: a shutdown, a lost lease and a wait
/// in vain burn nothing, a timeout burns the attempt.
pub fn verdict(
    end: RunEnd,
    attempt: u32,
    policy: &RetryPolicy,
    limit: Duration,
    random: f64,
) -> Verdict {
    let failure = match (end.answer, end.interrupted) {
        (Some(Ok(result)), _) => return Verdict::Succeeded { result },
        (_, Some(Interruption::Drain | Interruption::LeaseLost | Interruption::NoRoom)) => {
            return Verdict::Released;
        }
        (answer, Some(Interruption::Timeout)) => timed_out(answer, limit),
        (Some(Err(failure)), None) => failure,
        (None, None) => Failure::retry("the handler went away without an answer"),
    };
    match failure.class {
        FailureClass::ForGood => Verdict::Failed { failure },
        FailureClass::Postponed { after } => {
            Verdict::Postponed { failure, delay: after.min(MAX_ASKED_DELAY) }
        }
        FailureClass::Retry { .. } if attempt >= policy.max_attempts => Verdict::Failed { failure },
        FailureClass::Retry { after } => {
            // On top of what was asked for: it is a floor, and a crowd that was sent away together
            // must not come back together.
            let asked = after.unwrap_or_default().min(MAX_ASKED_DELAY);
            Verdict::Retry { failure, delay: asked + policy.delay(attempt, random) }
        }
    }
}

fn timed_out(answer: Option<Result<Option<Bytes>, Failure>>, limit: Duration) -> Failure {
    let tail = match answer {
        Some(Err(failure)) => failure.tail,
        Some(Ok(_)) | None => Bytes::new(),
    };
    Failure::retry(format!(
        "timed out after {limit:?}; raise `timeout` of its handler if that is too short"
    ))
    .with_status("timeout")
    .with_tail(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy =
        RetryPolicy { max_attempts: 3, base: Duration::from_secs(2), max: Duration::from_secs(60) };
    const LIMIT: Duration = Duration::from_secs(9);

    fn judge(
        answer: Option<Result<Option<Bytes>, Failure>>,
        interrupted: Option<Interruption>,
        attempt: u32,
    ) -> Verdict {
        verdict(RunEnd { answer, interrupted }, attempt, &POLICY, LIMIT, 0.5)
    }

    #[test]
    fn success_counts_whatever_was_asked_in_the_meantime() {
        for why in [
            None,
            Some(Interruption::Drain),
            Some(Interruption::Timeout),
            Some(Interruption::LeaseLost),
        ] {
            assert_eq!(judge(Some(Ok(None)), why, 1), Verdict::Succeeded { result: None });
        }
    }

    #[test]
    fn a_shutdown_or_a_lost_lease_burns_nothing_even_on_the_last_attempt() {
        for why in [Interruption::Drain, Interruption::LeaseLost, Interruption::NoRoom] {
            for answer in [None, Some(Err(Failure::for_good("x")))] {
                assert_eq!(judge(answer, Some(why), 3), Verdict::Released);
            }
        }
    }

    #[test]
    fn failures_retry_until_the_last_attempt() {
        let failure = Failure::retry("x");
        let retry = Verdict::Retry { failure: failure.clone(), delay: Duration::from_secs(1) };
        assert_eq!(judge(Some(Err(failure.clone())), None, 1), retry);
        assert!(matches!(judge(Some(Err(failure.clone())), None, 2), Verdict::Retry { .. }));
        assert_eq!(judge(Some(Err(failure.clone())), None, 3), Verdict::Failed { failure });
    }

    #[test]
    fn for_good_is_for_good() {
        let failure = Failure::for_good("x");
        assert_eq!(judge(Some(Err(failure.clone())), None, 1), Verdict::Failed { failure });
    }

    #[test]
    fn what_is_postponed_has_its_last_attempt_still_before_it() {
        let failure = Failure::postponed("x", Duration::from_secs(7));
        let delay = Duration::from_secs(7);
        let expected = Verdict::Postponed { failure: failure.clone(), delay };
        assert_eq!(judge(Some(Err(failure)), None, 3), expected);
        let failure = Failure::postponed("x", Duration::from_secs(1_000_000));
        let end = judge(Some(Err(failure)), None, 1);
        assert!(matches!(end, Verdict::Postponed { delay, .. } if delay == MAX_ASKED_DELAY));
    }

    #[test]
    fn an_asked_delay_is_a_floor_within_reason_below_the_policy_s_own() {
        let ask = |seconds, attempt, random| {
            let mut failure = Failure::retry("x");
            failure.class = FailureClass::Retry { after: Some(Duration::from_secs(seconds)) };
            let end = RunEnd { answer: Some(Err(failure)), interrupted: None };
            match verdict(end, attempt, &POLICY, LIMIT, random) {
                Verdict::Retry { delay, .. } => delay.as_secs(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(ask(7, 1, 0.0), 7);
        assert_eq!(ask(7, 1, 0.5), 8, "a crowd spreads");
        assert_eq!([ask(0, 1, 0.5), ask(0, 2, 0.5)], [1, 2], "`0` is no leave to storm");
        assert_eq!(ask(1_000_000, 1, 0.5), 3601);
    }

    #[test]
    fn a_timeout_burns_the_attempt_and_keeps_what_the_task_said() {
        let said = Failure::retry("signal SIGTERM").with_tail("halfway");
        match judge(Some(Err(said)), Some(Interruption::Timeout), 1) {
            Verdict::Retry { failure, .. } => {
                assert_eq!(failure.status.as_deref(), Some("timeout"));
                assert_eq!(&failure.tail[..], b"halfway");
                assert!(failure.message.contains("9s"), "{}", failure.message);
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(judge(None, Some(Interruption::Timeout), 3), Verdict::Failed { .. }));
    }
}
