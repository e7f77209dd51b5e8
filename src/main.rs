//! The thin binary: everything is in the library.

use std::process::ExitCode;

use queue_worker::allocator::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    queue_worker::cli::main()
}
