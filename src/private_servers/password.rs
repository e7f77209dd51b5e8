//! Passwords for private servers.
//!
//! Loopback is no wall between the users of a machine, and whoever logs in to Postgres as its
//! superuser runs programs as its user: so what a command starts asks for a password that only its
//! own user can read.

/// A password that nobody guesses: 122 random bits, in digits that need no quoting anywhere.
pub fn random_password() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
