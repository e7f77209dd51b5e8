//! Commits and mirrors, against the real git.
//!
//! `zoo` compares odd repositories with git's own values; `history` every row of long histories with
//! an independent reader of `git log`; `monsters` what is too large; `mirrors` what several users of
//! a mirror, killed programs and hostile sources do to it.

mod gitlog;
mod history;
mod invented;
mod kills;
mod mirrors;
mod monsters;
mod repository;
mod zoo;
