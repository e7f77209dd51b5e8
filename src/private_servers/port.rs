//! A free loopback port.
//!
//! Preferably below the range from which the kernel takes the ports of outgoing connections: a
//! server that is killed and started again wants its old port back, and must not find it used by
//! some client meanwhile. Another process can still be faster; whoever starts a server on the
//! port tries again with another one.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use rand::RngExt as _;

/// Where to look first: above the well-known services, below Linux's outgoing range (32768).
const QUIET_RANGE: std::ops::Range<u16> = 15_000..32_000;
/// How many ports of the quiet range to try before the kernel may choose.
const QUIET_ATTEMPTS: usize = 32;
/// How often a start that lost its port to somebody else is repeated.
pub(super) const START_ATTEMPTS: usize = 5;

/// A port on which nothing listens right now.
pub(super) fn free_port() -> io::Result<u16> {
    let mut rng = rand::rng();
    for _ in 0..QUIET_ATTEMPTS {
        let port = rng.random_range(QUIET_RANGE);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr().map(|address| address.port())
}
