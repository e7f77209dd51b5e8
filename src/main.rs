//! The thin binary: everything is in the library.

use std::process::ExitCode;

/// A task is some dozens of small allocations made in one place and freed in another. With the C
/// library's allocator they were a quarter of the worker's processor time. `no_thp`: with huge pages
/// an idle worker holds 13 MiB more.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    queue_worker::cli::main()
}
