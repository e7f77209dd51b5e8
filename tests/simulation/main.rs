//! The production's worker in simulated worlds: several workers over stores in memory that fail,
//! crash, freeze, forget and turn their clocks back, all from one seed, in paused time.
//!
//! Every write to a store is judged by the invariants of ARCHITECTURE.md. A failing seed tells the
//! command that replays it. `QW_SIM_SEEDS` says how many seeds are tried, `QW_SIM_FIRST` which is
//! the first; those in `seeds.txt` have found faults before and are tried each time.

mod chance;
mod checker;
mod handlers;
mod link;
mod mutation;
mod run;
mod stores;
mod worker;
mod workload;
mod world;

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
fn replay() {
    if let Some(seed) = number("QW_SIM_SEED") {
        run(seed);
    }
}

#[test]
fn seeds_that_found_faults() {
    for line in include_str!("seeds.txt").lines().filter(|line| !line.starts_with('#')) {
        let seed = line.split_whitespace().next().expect("a seed in each line");
        run(seed.parse().expect("a number"));
    }
}
