//! A private redis-server for one test: free port, nothing on disk, ended by its process id.

#![allow(dead_code, unreachable_pub)]

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use queue_worker::connection::RedisTarget;
use rustix::process::{Pid, Signal, kill_process};

/// Probes of a new server, 10 ms apart, before it counts as dead.
const START_PROBES: u32 = 2000;
/// Starts, in case somebody else takes the free port in between.
const STARTS: u32 = 5;

pub struct RedisServer {
    child: Option<Child>,
    pub port: u16,
    options: Vec<String>,
    password: Option<String>,
    dir: tempfile::TempDir,
}

pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

impl RedisServer {
    pub fn start() -> Self {
        Self::with(&[], None)
    }

    /// A server with more options, as on the command line, and a password for the tests' own login.
    pub fn with(options: &[&str], password: Option<&str>) -> Self {
        let mut server = Self {
            child: None,
            port: 0,
            options: options.iter().map(|one| (*one).to_owned()).collect(),
            password: password.map(str::to_owned),
            dir: tempfile::tempdir().expect("a temporary directory"),
        };
        for _ in 0..STARTS {
            server.port = free_port();
            if server.launch() {
                return server;
            }
        }
        panic!("redis-server does not start");
    }

    /// Starts the server (again) on its port; whether it answers.
    pub fn launch(&mut self) -> bool {
        let mut child = spawn(self.port, self.dir.path(), &self.options);
        for _ in 0..START_PROBES {
            if child.try_wait().expect("waitpid").is_some() {
                return false;
            }
            if self.try_connect().is_some() {
                self.child = Some(child);
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let _ = child.wait();
        false
    }

    /// Kills the server, as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("a running server");
        kill_process(Pid::from_child(child), signal).expect("our child");
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn target(&self) -> RedisTarget {
        RedisTarget::parse(&self.url(), None, self.password.as_deref()).expect("a good url")
    }

    /// A plain connection, for what the tests do besides.
    pub fn connect(&self) -> redis::Connection {
        self.try_connect().expect("a connection to our own server")
    }

    fn try_connect(&self) -> Option<redis::Connection> {
        let mut info = self.url().parse::<redis::ConnectionInfo>().ok()?;
        if let Some(password) = &self.password {
            let settings = info.redis_settings().clone().set_password(password);
            info = info.set_redis_settings(settings);
        }
        let mut connection = redis::Client::open(info).ok()?.get_connection().ok()?;
        redis::cmd("PING").query::<String>(&mut connection).ok()?;
        Some(connection)
    }

    /// One command over a connection of its own: `server.run("XADD k * a b")`.
    pub fn run<T: redis::FromRedisValue>(&self, words: &str) -> T {
        let mut words = words.split_whitespace();
        let mut cmd = redis::cmd(words.next().expect("a command"));
        for word in words {
            cmd.arg(word);
        }
        cmd.query(&mut self.connect()).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(port: u16, dir: &Path, options: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .args(["--appendonly", "no", "--dir"])
        .arg(dir)
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is installed")
}

/// Waits until the condition holds; panics after ten seconds.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = tokio::time::Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(tokio::time::Instant::now() < until, "waited in vain for: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
