//! Programs killed in the middle of a clone, and the way to a server: one that is stopped by a gate.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use queue_worker::handler::git::{GitMirrors, GitOptions, MirrorError, Mirrors, ObjectId, Source};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::invented;
use crate::mirrors::{assert_tidy, folder, options, origin, policy, source};
use crate::repository::{all_commits, import, line};

/// Tells the test program that it is the one to be killed, and where to clone.
const ROOT: &str = "QUEUE_WORKER_TEST_ROOT";
/// How long an event may take; generous, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A scene where an ssh of our own stands before the source: it notes its process group at each call,
/// and waits at the gate as long as that is there.
struct Scene {
    root: PathBuf,
    options: GitOptions,
    source: Source,
}

impl Scene {
    fn at(root: &Path) -> Self {
        let mut options = options(root);
        let ssh = root.join("ssh");
        options.access.ssh_command = Some(ssh.to_str().unwrap().to_owned());
        let url = format!("ssh://host{}", root.join("origin.git").display());
        let source = Source::new("r", &url, &policy()).unwrap();
        Self { root: root.to_owned(), options, source }
    }

    fn build(root: &Path) -> Self {
        import(&root.join("origin.git"), &invented::history(3, 40));
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = -G ] && exit 1\nfor command; do :; done\ncd '{}'\n\
             cut -d' ' -f5 /proc/$$/stat >>calls\n\
             if [ -e gate ]; then cat gate >/dev/null; fi\n\
             exec sh -c \"$command\"\n",
            root.display()
        );
        fs::write(root.join("ssh"), script).unwrap();
        fs::set_permissions(root.join("ssh"), fs::Permissions::from_mode(0o700)).unwrap();
        mknodat(CWD, root.join("gate"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        Self::at(root)
    }

    /// Waits until a fetch stands at the gate; its process group.
    async fn fetch_waits(&self) -> Pid {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let calls = fs::read_to_string(self.root.join("calls")).unwrap_or_default();
            if let Some(group) = calls.lines().next() {
                return Pid::from_raw(group.parse().unwrap()).unwrap();
            }
            assert!(Instant::now() < deadline, "no fetch came: {calls:?}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Lets through who waits, and everybody after that.
    fn open_gate(&self) {
        let mut gate = fs::OpenOptions::new();
        // Without somebody at the gate there is nothing to be opened.
        let gate = gate.write(true).custom_flags(libc::O_NONBLOCK).open(self.root.join("gate"));
        fs::remove_file(self.root.join("gate")).unwrap();
        if let Ok(mut gate) = gate {
            gate.write_all(b"go").unwrap();
        }
    }
}

/// The processes of a group that have not ended; nobody may be there to reap those that have.
fn alive(group: Pid) -> Vec<String> {
    let mut alive = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(line) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((name, fields)) = line.rsplit_once(')') else { continue };
        let fields: Vec<&str> = fields.split_whitespace().collect();
        if fields[2] == group.as_raw_nonzero().to_string() && fields[0] != "Z" {
            alive.push(name.to_owned());
        }
    }
    alive
}

#[tokio::test]
async fn a_fetch_that_is_killed_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let scene = Scene::build(root.path());
    let mirrors = GitMirrors::new(&scene.options).await.unwrap();
    let mut clone = JoinSet::new();
    let source = scene.source.clone();
    clone.spawn(async move { (mirrors.open(&source, &[]).await.map(|_| ()), mirrors) });
    let group = scene.fetch_waits().await;
    kill_process_group(group, Signal::KILL).unwrap();
    let (refused, mirrors) = clone.join_next().await.unwrap().unwrap();
    let refused = refused.unwrap_err();
    assert!(refused.is_transient(), "{refused}");
    assert_eq!(folder(root.path()).1, Vec::<String>::new());
    scene.open_gate();
    let commits = all_commits(&root.path().join("origin.git"));
    let mirror = mirrors.open(&scene.source, &commits).await.unwrap();
    assert_eq!(
        mirrors.list(&mirror, &queue_worker::handler::git::Selection::All).await.unwrap().len(),
        commits.len()
    );
    assert_tidy(root.path());
}

/// The program of the next test's child; alone it does nothing.
#[tokio::test]
async fn a_worker_that_clones() {
    let Some(root) = std::env::var_os(ROOT) else { return };
    let scene = Scene::at(Path::new(&root));
    let mirrors = GitMirrors::new(&scene.options).await.unwrap();
    let opened = mirrors.open(&scene.source, &[]).await;
    panic!("nobody killed it: {opened:?}");
}

#[tokio::test]
async fn a_worker_that_is_killed_keeps_the_mirror_until_its_fetch_has_ended() {
    let root = tempfile::tempdir().unwrap();
    let scene = Scene::build(root.path());
    let mut worker = Command::new(std::env::current_exe().unwrap())
        .args(["kills::a_worker_that_clones", "--exact", "--nocapture"])
        .env(ROOT, root.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let group = scene.fetch_waits().await;
    worker.kill().unwrap();
    worker.wait().unwrap();
    let mut hasty = scene.options.clone();
    hasty.mirrors.lock_time = Duration::from_millis(200);
    let hasty = GitMirrors::new(&hasty).await.unwrap();
    let refused = hasty.open(&scene.source, &[]).await.unwrap_err();
    assert!(matches!(refused, MirrorError::Busy(_)), "{refused}");
    assert!(folder(root.path()).1[0].starts_with("new-"), "the fetch is still at work there");
    scene.open_gate();
    let mirrors = GitMirrors::new(&scene.options).await.unwrap();
    let commits = all_commits(&root.path().join("origin.git"));
    mirrors.open(&scene.source, &commits).await.unwrap();
    assert_tidy(root.path());
    let _ = kill_process_group(group, Signal::KILL);
}

/// Lets through who waits to read a pipe: nothing is written there.
async fn pass(pipe: &Path) {
    let deadline = Instant::now() + PATIENCE;
    // Without somebody who reads there is nothing to be opened.
    while fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(pipe).is_err() {
        assert!(Instant::now() < deadline, "nobody reads {}", pipe.display());
        sleep(Duration::from_millis(10)).await;
    }
}

/// Whether somebody has a lock for himself.
fn is_locked(lock: &Path) -> bool {
    let lock = fs::File::open(lock).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockShared).is_err()
}

async fn until_locked(lock: &Path, expected: bool) {
    let deadline = Instant::now() + PATIENCE;
    while is_locked(lock) != expected {
        assert!(Instant::now() < deadline, "never so: locked {expected}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// What works on files cannot be called off with the run that wanted it, and works on under the lock.
#[tokio::test]
async fn a_run_that_is_called_off_keeps_the_mirror_until_its_work_has_ended() {
    let root = tempfile::tempdir().unwrap();
    let source = source(&origin(root.path()));
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    let git_dir = mirrors.open(&source, &[]).await.unwrap().git_dir().to_owned();
    let (mark, lock) = (git_dir.join("queue-worker.json"), git_dir.with_file_name("lock"));
    // Whoever reads the mark waits: first under the shared lock, and then to tidy up.
    fs::remove_file(&mark).unwrap();
    mknodat(CWD, &mark, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let mut run = JoinSet::new();
    run.spawn(async move { mirrors.open(&source, &[]).await.map(drop) });
    pass(&mark).await;
    until_locked(&lock, true).await;
    run.shutdown().await;
    let locked = is_locked(&lock);
    pass(&mark).await;
    assert!(locked, "others may come while the work goes on");
    until_locked(&lock, false).await;
    assert!(!git_dir.exists(), "it has no mark");
}

/// A source refuses commits that are gone one by one; who asks for many lets others in meanwhile.
#[tokio::test]
async fn who_asks_for_what_is_gone_lets_others_in() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let source = source(&origin);
    let mirrors = Arc::new(GitMirrors::new(&options(root.path())).await.unwrap());
    let git_dir = mirrors.open(&source, &[]).await.unwrap().git_dir().to_owned();
    let unreached = line(&origin, &["commit-tree", "b0^{tree}", "-p", "b0", "-m", "unreached"]);
    let mut wanted: Vec<ObjectId> =
        (1..=40).map(|number| format!("{number:040x}").parse().unwrap()).collect();
    wanted.push(unreached.parse().unwrap());
    let mut run = JoinSet::new();
    let (shared, same) = (Arc::clone(&mirrors), source.clone());
    run.spawn(async move { shared.open(&same, &wanted).await });
    until_locked(&git_dir.with_file_name("lock"), true).await;
    let mirror = mirrors.open(&source, &[]).await.unwrap();
    assert!(run.try_join_next().is_none(), "it was left alone to the end");
    drop(mirror);
    let mirror = run.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(line(mirror.git_dir(), &["cat-file", "-t", &unreached]), "commit");
}

#[tokio::test]
async fn nobody_waits_for_a_fetch_for_ever() {
    let root = tempfile::tempdir().unwrap();
    let mut scene = Scene::build(root.path());
    scene.options.mirrors.fetch_time = Duration::from_secs(2);
    let mirrors = GitMirrors::new(&scene.options).await.unwrap();
    let refused = mirrors.open(&scene.source, &[]).await.unwrap_err();
    assert!(refused.is_transient(), "{refused}");
    let group = scene.fetch_waits().await;
    assert_eq!(alive(group), Vec::<String>::new());
    assert_eq!(folder(root.path()).1, Vec::<String>::new());
}

/// The password comes from the file, and goes nowhere else.
#[tokio::test]
async fn a_password_is_read_from_its_file() {
    let root = tempfile::tempdir().unwrap();
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let mut asked = JoinSet::new();
    asked.spawn(async move {
        loop {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n")
                && stream.read_buf(&mut request).await.unwrap() > 0
            {}
            let request = String::from_utf8(request).unwrap();
            let sent = request.lines().find_map(|line| line.strip_prefix("Authorization: "));
            let status = match sent {
                Some(_) => "404 Not Found",
                None => "401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"r\"",
            };
            let answer =
                format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            if let Some(sent) = sent {
                return sent.to_owned();
            }
        }
    });
    let file = root.path().join("it's a secret");
    fs::write(&file, "username=user\npassword=s3cret\n").unwrap();
    let mut options = options(root.path());
    options.access.credentials.insert("127.0.0.1".to_owned(), file);
    let mirrors = GitMirrors::new(&options).await.unwrap();
    let source = Source::new("r", &format!("http://127.0.0.1:{port}/r"), &policy()).unwrap();
    let refused = mirrors.open(&source, &[]).await.unwrap_err();
    assert!(matches!(refused, MirrorError::Unreadable(_)), "{refused}");
    assert!(!refused.to_string().contains("s3cret"));
    assert_eq!(asked.join_next().await.unwrap().unwrap(), "Basic dXNlcjpzM2NyZXQ=");
}

/// A server that asks for a password, or not, and sends whoever comes elsewhere.
#[tokio::test]
async fn a_password_is_for_its_own_host() {
    for asks in [true, false] {
        let root = tempfile::tempdir().unwrap();
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        other.set_nonblocking(true).unwrap();
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let target = format!("http://localhost:{}/r", other.local_addr().unwrap().port());
        let mut at_work = JoinSet::new();
        at_work.spawn(async move {
            loop {
                let (mut stream, _) = server.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n")
                    && stream.read_buf(&mut request).await.unwrap() > 0
                {}
                let is_known = String::from_utf8(request).unwrap().contains("Authorization: ");
                let status = if asks && !is_known {
                    "401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"r\"".to_owned()
                } else {
                    format!("302 Found\r\nLocation: {target}")
                };
                let answer =
                    format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let file = root.path().join("secret");
        fs::write(&file, "username=user\npassword=s3cret\n").unwrap();
        let mut options = options(root.path());
        for host in ["127.0.0.1", "localhost"] {
            options.access.credentials.insert(host.to_owned(), file.clone());
        }
        let mirrors = GitMirrors::new(&options).await.unwrap();
        let source = Source::new("r", &format!("http://127.0.0.1:{port}/r"), &policy()).unwrap();
        let refused = mirrors.open(&source, &[]).await.unwrap_err();
        assert!(!refused.to_string().contains("s3cret"), "{refused}");
        let came = other.accept().map(|_| ()).map_err(|error| error.kind());
        assert_eq!(came, Err(std::io::ErrorKind::WouldBlock), "the other host was asked");
    }
}
