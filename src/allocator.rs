//! The memory of the process: small blocks from mimalloc, each large one a mapping of its own.
//!
//! A task is some dozens of small blocks, made in one place and freed in another; with the C library's
//! allocator they were a quarter of what the coordinating thread did. A large block carries a giant
//! payload: it grows while it is read, and mimalloc copies what grows and keeps what is freed for a
//! second at least. As a mapping its pages move instead, and are gone when it is.
//!
//! Which of the two a block belongs to follows from its layout alone, so nothing is looked up, and a
//! small block costs one comparison more. The binary makes this its global allocator; the library
//! itself relies on none. mimalloc is built without huge pages: with them a worker with 2,000 tasks in
//! flight held 37 MiB instead of 25.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

use mimalloc::MiMalloc;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};

/// From so many bytes on a block is a mapping: its pages cost a fraction of what it takes to digest or
/// send its bytes, and there are so few of them that the limit of mappings (65,530) is far away.
pub const LARGE: usize = 1024 * 1024;

/// What every mapping is aligned to, since no machine has smaller pages.
const PAGE: usize = 4096;

/// Memory from mimalloc or, for large blocks, straight from the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Allocator;

fn is_mapped(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= PAGE
}

/// A fresh mapping, all zero; null if there is none to be had.
#[allow(unsafe_code)]
fn map(size: usize) -> *mut u8 {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a private mapping at a place that the kernel chooses concerns nobody else.
    let mapped = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), size, access, flags) };
    mapped.map_or(ptr::null_mut(), <*mut _>::cast)
}

// SAFETY: each block comes from, and goes back to, the one of the two that `is_mapped` says for its
// layout, and the caller names the same layout each time. A mapping is aligned to PAGE, lasts until it
// is unmapped, and nothing here allocates or unwinds.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout) {
            return map(layout.size());
        }
        // SAFETY: the caller's promise.
        unsafe { MiMalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout) {
            return map(layout.size());
        }
        // SAFETY: the caller's promise.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_mapped(layout) {
            // SAFETY: the block is a mapping of this size, and nobody refers to it any more. That the
            // kernel refuses to split what it has merged leaves the pages behind, and no harm.
            let _ = unsafe { rustix::mm::munmap(block.cast(), layout.size()) };
            return;
        }
        // SAFETY: the caller's promise; the block is mimalloc's.
        unsafe { MiMalloc.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `size`, rounded up to the alignment, is a valid one.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_mapped(layout), is_mapped(new)) {
            // SAFETY: the caller's promise; the block is mimalloc's, and stays that.
            (false, false) => unsafe { MiMalloc.realloc(block, layout, size) },
            (true, true) => {
                // SAFETY: the block is a mapping of this size, and nobody relies on where it is.
                let moved = unsafe {
                    rustix::mm::mremap(block.cast(), layout.size(), size, MremapFlags::MAYMOVE)
                };
                moved.map_or(ptr::null_mut(), <*mut _>::cast)
            }
            // SAFETY: two blocks that do not overlap, each at least as long as what is copied; the old
            // one is freed with its own layout, and only if there is a new one.
            (true, false) | (false, true) => unsafe {
                let fresh = self.alloc(new);
                if !fresh.is_null() {
                    ptr::copy_nonoverlapping(block, fresh, layout.size().min(size));
                    self.dealloc(block, layout);
                }
                fresh
            },
        }
    }
}
