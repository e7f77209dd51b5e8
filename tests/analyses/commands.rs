//! `git analyse` and `git report`, as a person types them.

use crate::ground::{count, history, scene};
use crate::repository::line;
use crate::said::say;

#[tokio::test]
async fn a_history_is_analysed_and_reported() {
    let scene = scene(16).await;
    let git_dir = history(scene.path(), 41, 120);
    let total = count(&git_dir);
    let mut worker = scene.worker("a").await;
    let path = git_dir.to_str().unwrap();
    let said = say(&scene, &["git", "analyse", path, "--json"]).await.good().json();
    assert_eq!((&said["commits"], &said["analysed"]), (&total.into(), &total.into()), "{said}");
    assert_eq!(said["repository"], "r41");
    assert_eq!(say(&scene, &["git", "report"]).await.good().text(), "r41\n");

    let authors = line(&git_dir, &["shortlog", "-sne", "--branches", "--tags"]).lines().count();
    let views = ["git", "report", "r41", "--format", "json", "--limit", "1000"];
    let report = say(&scene, &views).await.good().json();
    assert_eq!(report["authors"].as_array().unwrap().len(), authors);
    assert_eq!(report["summary"][0]["state"], "succeeded");
    assert_eq!(report["summary"][0]["commits"], total);
    assert!(
        report["hotspots"][0]["revisions"].as_i64() >= report["hotspots"][1]["revisions"].as_i64()
    );
    assert!(report["owners"].as_array().is_some_and(|owners| !owners.is_empty()));
    assert!(report["tests"].as_array().is_some_and(|weeks| !weeks.is_empty()));

    let csv = ["git", "report", "r41", "--view", "authors", "--format", "csv", "--limit", "1000"];
    let csv = say(&scene, &csv).await.good().text();
    assert!(csv.starts_with("name,email,commits,merges,"), "{csv}");
    assert!(csv.contains("\r\nOne Person,one@example.com,"), "{csv}");
    assert_eq!(csv.lines().count(), authors + 1);

    let table = say(&scene, &["git", "report", "r41", "--limit", "3"]).await.good().text();
    for name in ["summary", "authors", "hotspots", "owners", "tests"] {
        assert!(table.lines().any(|line| line == name), "{table}");
    }

    // A second time everything is known.
    let again = say(&scene, &["git", "analyse", path, "--name", "r41"]).await.good().text();
    assert!(again.contains(&format!("{total} analysed")), "{again}");
    let attempts = "SELECT max(attempts)::bigint FROM queue_worker_git.analyses";
    assert_eq!(scene.count(attempts).await, 1);
    worker.terminate().await;
}

#[tokio::test]
async fn what_cannot_be_is_said_with_the_remedy() {
    let scene = scene(16).await;
    for (arguments, said) in [
        (&["git", "report", "nothing"][..], "none yet"),
        (&["git", "report", "x", "--format", "csv"], "--view"),
        (&["git", "analyse", "https://example.org/x"], "handler.commits.protocols"),
        (&["git", "analyse", "/nonexistent/x"], "/nonexistent/x"),
        (&["git", "analyse", "relative"], "forms"),
        (&["git", "analyse", "/", "--kind", "other", "--name", "x"], "git-analysis"),
        (&["git", "analyse", "/", "--name", "x", "--range", "a...b"], "`range`"),
    ] {
        let end = say(&scene, arguments).await;
        assert_eq!(end.code, Some(1), "{arguments:?}: {end:?}");
        assert!(end.err.contains(said), "{arguments:?}: {}", end.err);
    }
    let end = say(&scene, &["git", "analyse", scene.path().to_str().unwrap(), "--no-wait"]).await;
    assert_eq!(end.code, Some(0), "{end:?}");
    let mut worker = scene.worker("a").await;
    // A folder that is no repository fails for good, under a name.
    let id = end.text().trim().to_owned();
    let row = scene.until_status(&id, "failed").await;
    assert!(row.error.unwrap().contains("cannot be read"));
    worker.terminate().await;
}

/// What was refused is tried again when the cause is mended.
#[tokio::test]
async fn what_was_refused_can_be_tried_again() {
    let scene = scene(16).await;
    let git_dir = history(scene.path(), 42, 30);
    let ids: Vec<String> =
        line(&git_dir, &["rev-list", "--branches"]).lines().map(Into::into).collect();
    let (here, away) = (git_dir.clone(), git_dir.with_extension("away"));
    std::fs::rename(&here, &away).unwrap();
    let mut worker = scene.worker("a").await;
    let payload = serde_json::json!({"repo": "r42", "url": here, "commits": ids[..10]});
    scene.task("early", "commits", &payload.to_string()).await;
    scene.until_status("early", "succeeded").await;
    let refused = ["git", "report", "r42", "--view", "refused", "--format", "json"];
    let report = say(&scene, &refused).await.good().json();
    assert_eq!(report["refused"].as_array().unwrap().len(), 10, "{report}");
    assert_eq!(report["refused"][0]["code"], "REPO_UNREADABLE");

    std::fs::rename(&away, &here).unwrap();
    let none = ["git", "retry", "r42", "--code", "TOO_LARGE", "--json"];
    assert_eq!(say(&scene, &none).await.good().json()["commits"], 0);
    let said = say(&scene, &["git", "retry", "r42", "--json"]).await.good().json();
    assert_eq!((&said["commits"], &said["refused"]), (&10.into(), &0.into()));
    assert_eq!(crate::ground::progress(&scene, "r42").await.succeeded, 10);
    worker.terminate().await;
}
