//! The thin binary: see the library.

fn main() {}
