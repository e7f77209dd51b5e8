//! What an error of a store says about the store.
//!
//! Each store has errors of its own; here they answer the same few questions, so that doubts, probes
//! and the log treat them alike.

use std::fmt::Display;

use super::refusals;
use crate::connection::RedisError;
use crate::lease::LeaseError;
use crate::ledger::LedgerError;

/// An error of a store.
pub trait StoreError: Display {
    /// Whether the same call may succeed later without anybody's help.
    fn is_transient(&self) -> bool;

    /// Whether it says something about the store, and not only about the one call.
    fn is_of_the_store(&self) -> bool;

    /// What is to be done, where the error does not say it itself.
    fn remedy(&self) -> Option<&'static str> {
        None
    }
}

/// The error and its remedy.
pub(super) fn told(error: &impl StoreError) -> String {
    match error.remedy() {
        Some(remedy) => format!("{error}; {remedy}"),
        None => error.to_string(),
    }
}

impl StoreError for RedisError {
    fn is_transient(&self) -> bool {
        Self::is_transient(self)
    }

    fn is_of_the_store(&self) -> bool {
        true
    }

    fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Refused { message, .. } => refusals::remedy(message),
            Self::Unavailable { .. }
            | Self::Replica { .. }
            | Self::Timeout { .. }
            | Self::Unsure { .. }
            | Self::Misconfigured { .. } => None,
        }
    }
}

impl StoreError for LeaseError {
    fn is_transient(&self) -> bool {
        Self::is_transient(self)
    }

    fn is_of_the_store(&self) -> bool {
        match self {
            Self::Redis(_) | Self::NoQuorum { .. } => true,
            Self::Spent { .. } => false,
        }
    }

    fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Redis(error) => error.remedy(),
            Self::NoQuorum { .. } | Self::Spent { .. } => None,
        }
    }
}

impl StoreError for LedgerError {
    fn is_transient(&self) -> bool {
        Self::is_transient(self)
    }

    fn is_of_the_store(&self) -> bool {
        match self {
            Self::Conflict { .. } => false,
            Self::Unavailable { .. }
            | Self::LoginRefused { .. }
            | Self::Schema { .. }
            | Self::Refused { .. } => true,
        }
    }
}
