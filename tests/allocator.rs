//! The allocator of the program, under this very test: blocks that cross the limit between its two
//! halves keep their bytes, and giant ones neither are copied to grow nor stay when they are freed.

use std::thread;

use queue_worker::allocator::{Allocator, LARGE};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

const MIB: usize = 1024 * 1024;

/// Numbers that repeat at no power of two.
fn pattern(length: usize) -> impl Iterator<Item = u8> {
    (0..length).map(|at| u8::try_from(at % 251).expect("below 251"))
}

fn holds_pattern(bytes: &[u8]) -> bool {
    pattern(bytes.len()).eq(bytes.iter().copied())
}

#[test]
fn blocks_keep_their_bytes_on_their_way_up_and_down() {
    let mut bytes: Vec<u8> = Vec::new();
    for byte in pattern(3 * LARGE + 5) {
        bytes.push(byte);
    }
    assert!(holds_pattern(&bytes));
    for length in [3 * LARGE, LARGE + 1, LARGE, LARGE - 1, LARGE / 2, 1] {
        bytes.truncate(length);
        bytes.shrink_to_fit();
        assert!(holds_pattern(&bytes), "at {length} bytes");
    }
    for length in [LARGE - 1, LARGE, LARGE + 1, 5 * LARGE] {
        let known = bytes.len();
        bytes.reserve_exact(length - known);
        bytes.extend(pattern(length).skip(known));
        assert!(holds_pattern(&bytes), "at {length} bytes");
    }
}

#[test]
fn what_is_asked_for_zeroed_is_zero_after_others_have_used_it() {
    for length in [64, LARGE - 1, LARGE, 3 * LARGE] {
        drop(vec![0xA5_u8; length]);
        assert!(vec![0_u8; length].iter().all(|byte| *byte == 0), "{length} bytes");
    }
}

#[test]
fn a_block_may_be_aligned_to_more_than_a_page() {
    #[derive(Clone)]
    #[repr(align(16384))]
    struct Aligned([u8; 16384]);

    let mut all: Vec<Aligned> = Vec::new();
    for n in 0..150_u8 {
        all.push(Aligned([n; 16384]));
        assert!(all.as_ptr().addr().is_multiple_of(16384));
    }
    assert!(all.iter().zip(0_u8..).all(|(block, n)| block.0.iter().all(|byte| *byte == n)));
}

#[test]
fn blocks_are_freed_by_other_threads_than_made_them() {
    let makers: Vec<_> = (0..4)
        .map(|n| thread::spawn(move || vec![vec![n; LARGE + usize::from(n)], vec![n; 100]]))
        .collect();
    for (maker, n) in makers.into_iter().zip(0_u8..) {
        let blocks = maker.join().expect("made");
        assert!(blocks.iter().flatten().all(|byte| *byte == n));
    }
}

#[test]
fn a_giant_block_is_not_copied_to_grow_and_is_gone_when_freed() {
    let before = memory_kib("VmRSS");
    let mut giant = vec![1_u8; 128 * MIB];
    giant.reserve_exact(128 * MIB);
    let most = memory_kib("VmHWM") - before;
    assert!(most < 192 * 1024, "{most} KiB at the most");
    drop(giant);
    let left = memory_kib("VmRSS").saturating_sub(before);
    assert!(left < 64 * 1024, "{left} KiB are left");
}

fn memory_kib(field: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = text.lines().find_map(|line| line.strip_prefix(field)).expect("a known field");
    let number = line.trim_start_matches(':').trim().trim_end_matches(" kB");
    number.parse().expect("a number of kibibytes")
}
