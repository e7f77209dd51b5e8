//! Odd repositories, through to the rows: what is in the database is what git says, and every report
//! can still be asked for.

use std::collections::HashMap;
use std::process::Command;

use queue_worker::handler::git::results::{Report, Scope};
use queue_worker::handler::git::{ObjectId, Payload};
use serde::Deserialize;
use sqlx::Row;

use crate::batches::Ground;

#[derive(Debug, Deserialize)]
struct Expected {
    case: String,
    oid: String,
    parents: i64,
    author: String,
    files: Option<Vec<File>>,
    refused: Option<String>,
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
struct File {
    path: String,
    from: Option<String>,
    status: String,
    modes: String,
    added: Option<i64>,
    deleted: Option<i64>,
}

const COMMIT: &str = "\
    SELECT a.status, a.error_code, c.author_raw, \
        (SELECT count(*) FROM queue_worker_git.parents p WHERE p.commit_id = a.id), a.id \
    FROM queue_worker_git.analyses a LEFT JOIN queue_worker_git.commits c ON c.id = a.id \
    JOIN queue_worker_git.repositories r ON r.id = a.repository_id \
    WHERE r.name = $1 AND a.oid = $2";

const FILES: &str = "\
    SELECT encode(path, 'hex'), encode(old_path, 'hex'), status || COALESCE( \
            CASE WHEN status IN ('R', 'C') THEN to_char(similarity, 'FM000') END, ''), \
        old_mode, new_mode, added, deleted \
    FROM queue_worker_git.file_changes WHERE commit_id = $1 ORDER BY ord";

async fn files(ground: &Ground, commit: i64) -> Vec<File> {
    let rows = sqlx::query(FILES).bind(commit).fetch_all(&ground.scene.pool).await.unwrap();
    rows.iter()
        .map(|row| File {
            path: row.get(0),
            from: row.get(1),
            status: row.get(2),
            modes: format!("{:06o} {:06o}", row.get::<i32, _>(3), row.get::<i32, _>(4)),
            added: row.get(5),
            deleted: row.get(6),
        })
        .collect()
}

#[tokio::test]
async fn the_rows_of_every_animal_are_what_git_says() {
    let ground = Ground::new(20).await;
    let folder = ground.scene.path().join("zoo");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/git/zoo.sh");
    let output = Command::new("sh").arg(script).arg(&folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut cases: HashMap<String, Vec<Expected>> = HashMap::new();
    for line in include_str!("../git/zoo.jsonl").lines() {
        let case: Expected = serde_json::from_str(line).unwrap();
        cases.entry(case.case.split_once(':').unwrap().0.to_owned()).or_default().push(case);
    }
    for (repository, cases) in &cases {
        let ids: Vec<ObjectId> = cases.iter().map(|case| case.oid.parse().unwrap()).collect();
        let url = folder.join(repository);
        let said = ground.run(&Payload::of_commits(repository, url.to_str().unwrap(), &ids)).await;
        said.unwrap_or_else(|failure| panic!("{repository}: {failure:?}"));
        for (case, id) in cases.iter().zip(&ids) {
            let name = &case.case;
            let row = sqlx::query(COMMIT)
                .bind(repository)
                .bind(id.as_bytes())
                .fetch_one(&ground.scene.pool)
                .await
                .unwrap();
            assert_eq!(row.get::<Option<String>, _>(1), case.refused, "{name}");
            let expected = if case.refused.is_some() { "failed" } else { "succeeded" };
            assert_eq!(row.get::<String, _>(0), expected, "{name}");
            let Some(expected) = &case.files else { continue };
            let author: Vec<u8> = row.get(2);
            assert_eq!(author.escape_ascii().to_string(), case.author, "{name}");
            assert_eq!(row.get::<i64, _>(3), case.parents, "{name}");
            assert_eq!(&files(&ground, row.get(4)).await, expected, "{name}");
        }
        let place = ground.results.find(repository, None).await.unwrap().unwrap();
        for report in Report::ALL {
            let answer = ground.results.report(report, Scope { place, limit: 100 }).await;
            answer.unwrap_or_else(|error| panic!("{repository}, {}: {error}", report.name()));
        }
    }
}
