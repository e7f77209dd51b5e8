//! Sources of all kinds: shallow, long ids, other people's, none at all; and what a mirror tells of
//! what it holds.

use std::fs;

use queue_worker::handler::git::{
    GitMirrors, MirrorError, Mirrors, ObjectFormat, ObjectId, Outcome, Refusal, Selection, Source,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use crate::mirrors::{options, origin, outcomes, policy, source};
use crate::repository::{all_commits, id, import, import_as, line, said};

#[tokio::test]
async fn a_mirror_is_listed() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    said(&origin, &["symbolic-ref", "HEAD", "refs/heads/b1"]);
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    let mirror = mirrors.open(&source(&origin), &[]).await.unwrap();
    let mut all = mirrors.list(&mirror, &Selection::All).await.unwrap();
    let mut expected = all_commits(&origin);
    all.sort();
    expected.sort();
    assert_eq!(all, expected);
    let (from, to) = (id(&origin, "b1~2"), id(&origin, "b1"));
    let range = Selection::Range { from: Some(from), to };
    let range = mirrors.list(&mirror, &range).await.unwrap();
    let said = line(&origin, &["rev-list", "b1~2..b1"]);
    assert_eq!(range.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"), said);
    assert_eq!(mirrors.resolve(&mirror, "HEAD").await.unwrap(), Some(to));
    assert_eq!(mirrors.resolve(&mirror, "b1").await.unwrap(), Some(to));
    assert_eq!(mirrors.resolve(&mirror, &from.to_string()).await.unwrap(), Some(from));
    for name in ["nothing", "--all", "b1~2", "x\ny", ""] {
        assert_eq!(mirrors.resolve(&mirror, name).await.unwrap(), None, "{name:?}");
    }
    assert_eq!(mirrors.mailmap(&mirror).await.unwrap(), None);
}

#[tokio::test]
async fn the_mailmap_is_that_of_the_default_branch() {
    let root = tempfile::tempdir().unwrap();
    let text = "A Ü <a@x> <b@x>\nC <c@x> Old C <d@x>\n";
    let stream = format!(
        "commit refs/heads/main\ncommitter A <a@x> 1 +0000\ndata 0\n\nM 100644 inline .mailmap\ndata {}\n{text}\n",
        text.len()
    );
    let origin = import(&root.path().join("origin.git"), stream.as_bytes());
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    let mirror = mirrors.open(&source(&origin), &[]).await.unwrap();
    assert_eq!(mirrors.mailmap(&mirror).await.unwrap().as_deref(), Some(text.as_bytes()));
}

/// It may be another one at each fetch, or none.
#[tokio::test]
async fn the_default_branch_is_that_of_the_last_fetch() {
    let root = tempfile::tempdir().unwrap();
    let stream = "commit refs/heads/main\ncommitter A <a@x> 1 +0000\ndata 0\n\n\
                  M 100644 inline .mailmap\ndata 10\nA <a@x> \n\n\n";
    let origin = import(&root.path().join("origin.git"), stream.as_bytes());
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    let mirror = mirrors.open(&source(&origin), &[]).await.unwrap();
    let first = mirrors.resolve(&mirror, "HEAD").await.unwrap();
    assert_eq!(first, Some(id(&origin, "main")));
    let map = mirrors.mailmap(&mirror).await.unwrap();
    assert!(map.is_some());
    drop(mirror);
    said(&origin, &["branch", "-m", "main", "trunk"]);
    let mirror = mirrors.refresh(&source(&origin)).await.unwrap();
    assert_eq!(mirrors.resolve(&mirror, "HEAD").await.unwrap(), first);
    assert_eq!(mirrors.mailmap(&mirror).await.unwrap(), map);
    assert_eq!(mirrors.resolve(&mirror, "main").await.unwrap(), None);
    drop(mirror);
    let tree = line(&origin, &["hash-object", "-t", "tree", "-w", "/dev/null"]);
    let other = line(&origin, &["commit-tree", &tree, "-m", "other"]);
    said(&origin, &["update-ref", "refs/heads/other", &other]);
    said(&origin, &["symbolic-ref", "HEAD", "refs/heads/other"]);
    let mirror = mirrors.refresh(&source(&origin)).await.unwrap();
    assert_eq!(mirrors.resolve(&mirror, "HEAD").await.unwrap(), Some(id(&origin, "other")));
    assert_eq!(mirrors.mailmap(&mirror).await.unwrap(), None);
    drop(mirror);
    said(&origin, &["symbolic-ref", "HEAD", "refs/heads/nothing"]);
    let mirror = mirrors.refresh(&source(&origin)).await.unwrap();
    assert_eq!(mirrors.resolve(&mirror, "HEAD").await.unwrap(), None);
}

#[tokio::test]
async fn any_number_of_branches_may_be_named_like_head() {
    use std::io::Write as _;
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let tip = id(&origin, "b0");
    let mut update = crate::repository::git(&origin);
    update.args(["update-ref", "--stdin"]).stdin(std::process::Stdio::piped());
    let mut update = update.spawn().unwrap();
    let mut refs = update.stdin.take().unwrap();
    let long = "x".repeat(180);
    for number in 0..350 {
        writeln!(refs, "create refs/heads/{long}-{number}/HEAD {tip}").unwrap();
    }
    drop(refs);
    assert!(update.wait().unwrap().success());
    said(&origin, &["symbolic-ref", "HEAD", "refs/heads/b0"]);
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    let mirror = mirrors.open(&source(&origin), &[]).await.unwrap();
    for name in ["HEAD".to_owned(), format!("{long}-349/HEAD")] {
        assert_eq!(mirrors.resolve(&mirror, &name).await.unwrap(), Some(tip), "{name}");
    }
}

#[tokio::test]
async fn a_mailmap_of_any_size_is_no_danger() {
    let root = tempfile::tempdir().unwrap();
    let line = "A <a@x> <b@x>\n";
    let text = line.repeat(17 * 1024 * 1024 / line.len());
    let stream = format!(
        "commit refs/heads/main\ncommitter A <a@x> 1 +0000\ndata 0\n\nM 100644 inline .mailmap\ndata {}\n{text}\n",
        text.len()
    );
    let origin = import(&root.path().join("origin.git"), stream.as_bytes());
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    let mirror = mirrors.open(&source(&origin), &[]).await.unwrap();
    let refused = mirrors.mailmap(&mirror).await.unwrap_err();
    assert!(matches!(refused, MirrorError::TooLarge(_)), "{refused}");
}

#[tokio::test]
async fn sources_that_cannot_be_read_are_named() {
    let root = tempfile::tempdir().unwrap();
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    let any: ObjectId = "1".repeat(40).parse().unwrap();
    let missing = source(&root.path().join("nothing"));
    let found = outcomes(&mirrors, &missing, &[any]).await;
    assert_eq!(found[0].refusal(), Some(Refusal::RepoUnreadable), "{found:?}");
    let unreachable = Source::new("r", "http://127.0.0.1:1/r", &policy()).unwrap();
    let found = outcomes(&mirrors, &unreachable, &[any]).await;
    assert!(matches!(found[0], Outcome::Failed { .. }), "{found:?}");
    let origin = origin(root.path());
    let mut options = options(root.path());
    options.mirrors.repository = 1000;
    let mirrors = GitMirrors::new(&options).await.unwrap();
    let found = outcomes(&mirrors, &source(&origin), &[any]).await;
    assert_eq!(found[0].refusal(), Some(Refusal::TooLarge), "{found:?}");
}

/// Another user's repository could have been made for us to trip over.
#[tokio::test]
async fn whose_repositories_are_trusted_is_the_operators_to_say() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let tree = root.path().join("tree");
    said(root.path(), &["clone", "-q", "-n", origin.to_str().unwrap(), tree.to_str().unwrap()]);
    let owner = Some(rustix::process::Uid::from_raw(65534));
    rustix::fs::chown(&origin, owner, None).unwrap();
    let mut options = options(root.path());
    let mirrors = GitMirrors::new(&options).await.unwrap();
    let refused = mirrors.open(&source(&origin), &[]).await.unwrap_err();
    assert!(matches!(refused, MirrorError::Unreadable(_)), "{refused}");
    options.sources.trusted_paths = vec![origin.clone()];
    // The tree stands for the repository in it.
    rustix::fs::chown(tree.join(".git"), owner, None).unwrap();
    let in_tree = Source::new("t", tree.to_str().unwrap(), &policy()).unwrap();
    let mirrors = GitMirrors::new(&options).await.unwrap();
    mirrors.open(&source(&origin), &[]).await.unwrap();
    let refused = mirrors.open(&in_tree, &[]).await.unwrap_err();
    assert!(refused.to_string().contains("trusted_paths"), "{refused}");
    options.sources.trusted_paths = vec![tree];
    let mirrors = GitMirrors::new(&options).await.unwrap();
    mirrors.open(&in_tree, &[]).await.unwrap();
}

#[tokio::test]
async fn a_shallow_source_ends_somewhere() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let shallow = root.path().join("shallow.git");
    let url = format!("file://{}", origin.display());
    let target = shallow.to_str().unwrap();
    said(root.path(), &["clone", "-q", "--bare", "--depth=2", "-b", "b0", &url, target]);
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    let commits = all_commits(&shallow);
    let ends = fs::read_to_string(shallow.join("shallow")).unwrap();
    let found = outcomes(&mirrors, &source(&shallow), &commits).await;
    for (id, outcome) in commits.iter().zip(found) {
        let expected = ends.contains(&id.to_string()).then_some(Refusal::ShallowBoundary);
        assert_eq!(outcome.refusal(), expected, "{id}");
    }
    // What was the end is not for ever: it may lie further back, or nowhere.
    for (deepen, ended) in [("--depth=4", true), ("--unshallow", false)] {
        said(&shallow, &["fetch", "-q", deepen, &url, "+refs/heads/b0:refs/heads/b0"]);
        assert_eq!(shallow.join("shallow").exists(), ended);
        for outcome in outcomes(&mirrors, &source(&shallow), &commits).await {
            assert!(outcome.analysis().is_some(), "{outcome:?}");
        }
        let mirror = mirrors.refresh(&source(&shallow)).await.unwrap();
        let mut all = mirrors.list(&mirror, &Selection::All).await.unwrap();
        let mut expected = all_commits(&shallow);
        all.sort();
        expected.sort();
        assert_eq!(all, expected);
    }
}

#[tokio::test]
async fn long_ids_work_as_well() {
    let root = tempfile::tempdir().unwrap();
    let origin = root.path().join("long");
    fs::create_dir(&origin).unwrap();
    said(&origin, &["init", "-q", "-b", "main", "--object-format=sha256", "."]);
    fs::write(origin.join("f"), "1\n2\n").unwrap();
    said(&origin, &["add", "."]);
    said(&origin, &["commit", "-q", "-m", "long"]);
    let commit = id(&origin, "HEAD");
    assert_eq!(commit.to_string().len(), 64);
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    let found =
        outcomes(&mirrors, &source(&origin), &[commit, "2".repeat(64).parse().unwrap()]).await;
    assert_eq!(found[0].analysis().unwrap().totals.added, 2);
    assert_eq!(found[1].refusal(), Some(Refusal::CommitGone));
}

/// Nothing tells how ids are made before there is an object.
#[tokio::test]
async fn long_ids_are_noticed_late_as_well() {
    let root = tempfile::tempdir().unwrap();
    let origin = root.path().join("long");
    fs::create_dir(&origin).unwrap();
    said(&origin, &["init", "-q", "-b", "main", "--object-format=sha256", "."]);
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    let mirror = mirrors.open(&source(&origin), &[]).await.unwrap();
    assert_eq!(mirrors.list(&mirror, &Selection::All).await.unwrap(), []);
    drop(mirror);
    said(&origin, &["commit", "-q", "--allow-empty", "-m", "long"]);
    let tip = id(&origin, "main");
    said(&origin, &["symbolic-ref", "HEAD", "refs/heads/unborn"]);
    let mirror = mirrors.refresh(&source(&origin)).await.unwrap();
    assert_eq!(mirrors.resolve(&mirror, "main").await.unwrap(), Some(tip));
    drop(mirror);
    // Also by another's first clone.
    let again = Source::new("s", origin.to_str().unwrap(), &policy()).unwrap();
    let mirror = mirrors.open(&again, &[]).await.unwrap();
    assert_eq!(mirrors.list(&mirror, &Selection::All).await.unwrap(), [tip]);
}

/// Over such a server git does not say how ids are made, only that something is missing.
#[tokio::test]
async fn a_server_of_plain_files_will_do() {
    let root = tempfile::tempdir().unwrap();
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let files = root.path().to_owned();
    let mut at_work = JoinSet::new();
    at_work.spawn(async move {
        loop {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n")
                && stream.read_buf(&mut request).await.unwrap() > 0
            {}
            let request = String::from_utf8(request).unwrap();
            let path = request.split([' ', '?']).nth(1).unwrap().trim_start_matches('/');
            let file = fs::read(files.join(path));
            let status = if file.is_ok() { "200 OK" } else { "404 Not Found" };
            let body = file.unwrap_or_default();
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n");
            stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).await.unwrap();
            stream.write_all(&body).await.unwrap();
        }
    });
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    for format in [ObjectFormat::Sha1, ObjectFormat::Sha256] {
        let name = format.as_str();
        let stream = "commit refs/heads/main\ncommitter A <a@x> 1 +0000\ndata 0\n\n";
        let origin = import_as(format, &root.path().join(name), stream.as_bytes());
        said(&origin, &["update-server-info"]);
        let url = format!("http://127.0.0.1:{port}/{name}");
        let source = Source::new(name, &url, &policy()).unwrap();
        let mirror = mirrors.open(&source, &[]).await.unwrap();
        let all = mirrors.list(&mirror, &Selection::All).await.unwrap();
        assert_eq!(all, [id(&origin, "main")], "{name}");
    }
}
