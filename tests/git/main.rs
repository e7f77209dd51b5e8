//! Commits and mirrors, against the real git.
//!
//! `zoo` compares odd repositories with git's own values; `history` every row of long histories with
//! an independent reader of `git log`, `oracle` with another implementation of git; `monsters` are too
//! large; `mirrors`, `kills`, `damage` and `sources` are what users of a mirror, killed programs, bad
//! disks and odd sources do to it.

mod bombs;
mod damage;
mod gitlog;
mod history;
mod invented;
mod kills;
mod mirrors;
mod monsters;
mod oracle;
mod repository;
mod sources;
mod zoo;
