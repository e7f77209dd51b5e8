//! Readers of what git prints: pure functions over bytes.
//!
//! A repository's content is hostile: any bytes are taken without a panic, and what has no form is
//! said to have none rather than guessed.

pub(super) mod changes;
pub(super) mod commit;
pub(super) mod ident;
pub(super) mod text;
pub(super) mod trailers;
