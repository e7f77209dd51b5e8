//! The production's worker in simulated worlds: several workers over stores in memory that fail,
//! crash, freeze, forget and turn their clocks back, all from one seed, in paused time.
//!
//! Every write to a store is judged by the invariants of ARCHITECTURE.md. A failing seed tells the
//! command that replays it. `QW_SIM_SEEDS` says how many seeds are tried, `QW_SIM_FIRST` which is
//! the first; those in `seeds.txt` have found faults before and are tried each time.

mod chance;
mod checker;
mod freeze;
mod handlers;
mod link;
mod mutation;
mod plan;
mod run;
mod stores;
mod worker;
mod workload;
mod world;

use checker::Tally;
use mutation::Mutation;
use run::simulate;

/// Seeds of one run of the whole suite.
const SEEDS: u64 = 2_000;
/// Lines of the trace that a failure shows; all of them are in a file.
const SHOWN: usize = 120;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs a seed; panics with what it takes to find out why it failed.
fn run(seed: u64) {
    let outcome = simulate(seed, None);
    if outcome.violations.is_empty() {
        return;
    }
    let path = format!("{}/simulation-{seed}.trace", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&path, outcome.trace.join("\n")).unwrap();
    let from = outcome.trace.len().saturating_sub(SHOWN);
    panic!(
        "seed {seed} breaks the protocol:\n{}\n\n{}\n\nthe whole trace is in {path}; replay:\n    \
         QW_SIM_SEED={seed} cargo nextest run --test simulation -E 'test(=replay)'\n",
        outcome.violations.join("\n"),
        outcome.trace[from..].join("\n"),
    );
}

/// The seeds in `seeds.txt`.
fn known_seeds() -> impl Iterator<Item = u64> {
    include_str!("seeds.txt").lines().filter(|line| !line.starts_with('#')).map(|line| {
        let seed = line.split_whitespace().next().expect("a seed in each line");
        seed.parse().expect("a number")
    })
}

fn share(part: u64) {
    let first = number("QW_SIM_FIRST").unwrap_or(0);
    let seeds = number("QW_SIM_SEEDS").unwrap_or(SEEDS);
    (first..first + seeds).filter(|seed| seed % 8 == part).for_each(run);
}

macro_rules! shares {
    ($($name:ident = $part:literal),+) => {
        $(#[test]
        fn $name() {
            share($part);
        })+
    };
}

shares!(
    seeds_0 = 0,
    seeds_1 = 1,
    seeds_2 = 2,
    seeds_3 = 3,
    seeds_4 = 4,
    seeds_5 = 5,
    seeds_6 = 6,
    seeds_7 = 7
);

#[test]
fn the_same_seed_is_the_same_world() {
    for seed in 0..12 {
        let (first, second) = (simulate(seed, None), simulate(seed, None));
        let differs = first.trace.iter().zip(&second.trace).position(|(a, b)| a != b);
        let lines = |trace: &[String], at: usize| trace[at.saturating_sub(5)..=at].join("\n");
        if let Some(at) = differs {
            panic!(
                "seed {seed} came out differently:\n{}\n\n{}",
                lines(&first.trace, at),
                lines(&second.trace, at)
            );
        }
        assert_eq!(first.trace.len(), second.trace.len());
        assert_eq!(first.tally, second.tally);
    }
}

/// A simulation in which nothing happens would find no faults either.
#[test]
fn everything_that_can_happen_does() {
    let mut sum = Tally::default();
    for seed in 0..100 {
        sum.add(&simulate(seed, None).tally);
    }
    println!("{sum:#?}");
    for (what, count) in sum.each() {
        // A drain that spends its whole budget takes a ledger that is away to the very end.
        let least = if what == "spent drain" { 1 } else { 5 };
        assert!(count >= least, "{what} happened {count} times only");
    }
}

/// Seeds that may pass before a mutation is noticed.
const PATIENCE: u64 = 1_000;

fn is_caught(mutation: Mutation) {
    for seed in known_seeds().chain(0..PATIENCE) {
        let violations = simulate(seed, Some(mutation)).violations;
        if let Some(violation) = violations.first() {
            println!("{mutation:?} was caught with seed {seed} {violation}");
            return;
        }
    }
    panic!("{mutation:?} was not noticed with {PATIENCE} seeds");
}

macro_rules! mutations {
    ($($name:ident = $mutation:ident),+ $(,)?) => {
        mod mutations {
            $(#[test]
            fn $name() {
                super::is_caught(super::Mutation::$mutation);
            })+
        }
    };
}

mutations!(
    ack_before_commit = AckBeforeCommit,
    no_fence_in_record = NoFenceInRecord,
    no_fence_in_perform = NoFenceInPerform,
    claim_ignores_lease = ClaimIgnoresLease,
    no_crash_on_takeover = NoCrashOnTakeover,
    crash_on_give_back = CrashOnGiveBack,
    retry_on_drain = RetryOnDrain,
    fence_stays = FenceStays,
    renew_ignores_fence = RenewIgnoresFence,
    renewal_never_fails = RenewalNeverFails,
    effect_outside_transaction = EffectOutsideTransaction,
    promote_marks_first = PromoteMarksFirst,
    condemn_without_recheck = CondemnWithoutRecheck,
    done_is_claimable = DoneIsClaimable,
    unlock_without_compare = UnlockWithoutCompare,
    renew_lock_without_compare = RenewLockWithoutCompare,
    beat_after_release = BeatAfterRelease,
    hand_over_before_release = HandOverBeforeRelease,
    give_back_without_owner = GiveBackWithoutOwner,
    reap_with_pending = ReapWithPending,
    no_unlock = NoUnlock,
    delay_without_payload = DelayWithoutPayload,
    claim_forgets_payload = ClaimForgetsPayload,
);

#[test]
fn replay() {
    if let Some(seed) = number("QW_SIM_SEED") {
        run(seed);
    }
}

#[test]
fn seeds_that_found_faults() {
    known_seeds().for_each(run);
}
