//! A scene with a handler of commits, and histories to analyse.

use std::path::{Path, PathBuf};

use queue_worker::handler::git::Payload;
use queue_worker::handler::git::results::{Place, Progress, Results};
use queue_worker::private_servers::{AppendFsync, PostgresOptions, RedisOptions};

use crate::common::{Scene, wait_for};
use crate::invented;
use crate::repository::{git, import, line, said};

/// A scene whose workers analyse commits, kind `commits`, of local repositories.
pub(crate) async fn scene(batch: usize) -> Scene {
    let redis = RedisOptions { append_only: Some(AppendFsync::Always), ..RedisOptions::default() };
    let scene = Scene::with(redis, PostgresOptions::volatile()).await;
    scene.write_config(&handler(&scene, batch));
    scene
}

/// The table of the handler, to which keys may be added; mirrors are shared by all workers of the scene.
pub(crate) fn handler(scene: &Scene, batch: usize) -> String {
    let mirrors = scene.path().join("mirrors");
    format!(
        "\n[handler.commits]\ntype = \"git-analysis\"\nprotocols = [\"file\"]\n\
         mirrors = \"{}\"\nbatch = {batch}\n",
        mirrors.display()
    )
}

/// An invented history in a bare repository, with a mailmap on the default branch.
pub(crate) fn history(folder: &Path, seed: u64, commits: usize) -> PathBuf {
    let git_dir = import(&folder.join(format!("r{seed}.git")), &invented::history(seed, commits));
    said(&git_dir, &["symbolic-ref", "HEAD", "refs/heads/b0"]);
    let mailmap = "One Person <one@example.com> <a1@example.com>\n\
                   <one@example.com> <A2@Example.com>\n\
                   Three <a3@example.com>\n\
                   Nobody <nobody@example.com> Somebody Else <a4@example.com>\n";
    commit_mailmap(&git_dir, mailmap);
    git_dir
}

/// One more commit on the default branch, with this mailmap.
pub(crate) fn commit_mailmap(git_dir: &Path, mailmap: &str) {
    let message = "mailmap";
    let stream = format!(
        "commit refs/heads/b0\ncommitter M <m@example.com> 1500000000 +0200\ndata {}\n{message}\n\
         from refs/heads/b0^0\nM 100644 inline .mailmap\ndata {}\n{mailmap}\n",
        message.len(),
        mailmap.len(),
    );
    feed(git_dir, &stream);
}

fn feed(git_dir: &Path, stream: &str) {
    use std::io::Write;
    let mut command = git(git_dir);
    command.args(["fast-import", "--quiet", "--force"]).stdin(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(stream.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// How many commits branches and tags reach.
pub(crate) fn count(git_dir: &Path) -> u64 {
    line(git_dir, &["rev-list", "--count", "--branches", "--tags"]).parse().unwrap()
}

/// Enqueues all commits of a repository.
pub(crate) async fn enqueue_all(scene: &Scene, id: &str, name: &str, git_dir: &Path) {
    scene.task(id, "commits", &Payload::of_all(name, git_dir.to_str().unwrap())).await;
}

/// The results of the scene.
pub(crate) fn results(scene: &Scene) -> Results {
    Results::new(&scene.database.parse().unwrap(), None, 4)
}

/// Where the results of a repository are.
pub(crate) async fn place(scene: &Scene, name: &str) -> Option<Place> {
    results(scene).find(name, None).await.unwrap()
}

/// How far a repository is; all zero before its first task.
pub(crate) async fn progress(scene: &Scene, name: &str) -> Progress {
    match place(scene, name).await {
        Some(place) => results(scene).progress(place).await.unwrap(),
        None => Progress::default(),
    }
}

/// Waits until all commits are analysed.
pub(crate) async fn until_analysed(scene: &Scene, name: &str, commits: u64) {
    wait_for(&format!("{commits} commits of {name}"), async || {
        progress(scene, name).await.succeeded == commits
    })
    .await;
}
