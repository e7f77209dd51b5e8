//! A history of one long text, parts of which are written anew, moved and taken out.
//!
//! The search for common lines takes shortcuts in it: many lines differ, and many are the same as
//! others. More than half of its counts are not the smallest possible ones.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Lines at most.
const LONG: usize = 3000;

/// So many commits from a seed, as `git fast-import` reads them.
pub(crate) fn history(seed: u64, commits: usize) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut lines: Vec<u32> = Vec::new();
    let mut stream = Vec::new();
    for date in 0..commits {
        for _ in 0..rng.random_range(1..30) {
            edit(&mut rng, &mut lines);
        }
        let text = lines.iter().map(|line| format!("line {line}\n")).collect::<Vec<_>>().concat();
        let head = format!("commit refs/heads/main\ncommitter C <c@x> {date} +0000\ndata 0\n");
        let file = format!("M 644 inline text\ndata {}\n{text}\n", text.len());
        stream.extend([head, file].concat().into_bytes());
    }
    stream
}

/// Takes some lines out, and puts nothing, the same or new ones somewhere else.
fn edit(rng: &mut StdRng, lines: &mut Vec<u32>) {
    let from = rng.random_range(0..=lines.len());
    let to = lines.len().min(from + rng.random_range(0..90));
    let taken: Vec<u32> = lines.drain(from..to).collect();
    let new = (0..120).map(|_| line(rng)).collect();
    let at = rng.random_range(0..=lines.len());
    lines.splice(at..at, vec![Vec::new(), taken, new].swap_remove(rng.random_range(0..3)));
    lines.truncate(LONG);
}

/// Half of the lines are some of few, as braces and blank ones are.
fn line(rng: &mut StdRng) -> u32 {
    let kinds = if rng.random_bool(0.5) { 9 } else { 2000 };
    rng.random_range(0..kinds)
}
