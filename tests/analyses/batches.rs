//! The handler itself, where locks and fences stand in its way.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_worker::clock::Clock;
use queue_worker::connection::RedisTarget;
use queue_worker::domain::{
    EntryId, Failure, FailureClass, Fence, Kind, PayloadHash, QueueName, Task, TaskId, WorkerId,
};
use queue_worker::handler::git::results::{Claim, Finished, Results};
use queue_worker::handler::git::{
    Analysed, Engine, GitEngine, GitHandler, GitHandlerOptions, GitMirrors, GitOptions, GitParts,
    GitStores, Mirror, Mirrors, ObjectId, Outcome, Payload, Profile, Source, SourcePolicy,
};
use queue_worker::handler::{ExternalHandler, Run};
use queue_worker::lease::{
    Acquired, LeaseStore, QuorumLeaseOptions, QuorumLeases, RedisLeaseOptions, RedisLeases,
};
use queue_worker::private_servers::{RedisOptions, RedisServer};
use queue_worker::queue::{Demand, Queue, RedisQueue, RedisQueueOptions};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::common::{QUEUE, Scene, wait_for};
use crate::ground::{history, results, scene};
use crate::repository::{all_commits, line};

/// An entry as it is in the stream.
pub(crate) type Fields = Vec<(Bytes, Bytes)>;

/// The engine, which notes what it was asked for and waits at a gate.
struct Watched {
    engine: GitEngine,
    gate: Semaphore,
    asked: Mutex<Vec<ObjectId>>,
}

#[async_trait]
impl Engine for Watched {
    fn profile(&self) -> &Profile {
        self.engine.profile()
    }

    async fn analyse(&self, mirror: &Mirror, commits: &[ObjectId], to: &mpsc::Sender<Analysed>) {
        self.asked.lock().unwrap().extend(commits);
        let _passed = self.gate.acquire().await;
        self.engine.analyse(mirror, commits, to).await;
    }
}

/// Everything around one handler.
pub(crate) struct Ground {
    pub(crate) scene: Scene,
    pub(crate) git_dir: PathBuf,
    engine: Arc<Watched>,
    leases: Arc<dyn LeaseStore>,
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) results: Arc<Results>,
    handler: Arc<GitHandler>,
}

/// The lease of the handler: how long it has patience with others, half of it.
const LEASE: Duration = Duration::from_millis(500);

impl Ground {
    pub(crate) async fn new(commits: usize) -> Self {
        Self::with_gate(commits, 1000).await
    }

    async fn with_gate(commits: usize, places: usize) -> Self {
        Self::with_lock_nodes(commits, places, &[]).await
    }

    /// Results that give Postgres so long for a call.
    async fn with_call_time(commits: usize, time: Duration) -> Self {
        let scene = scene(16).await;
        let connect = scene.database.parse().unwrap();
        let results = Results::with_timeout(&connect, None, 4, time);
        Self::with_results(scene, commits, 1000, &[], results).await
    }

    /// Locks on the nodes, if there are any, else in the scene's own Redis.
    async fn with_lock_nodes(commits: usize, places: usize, nodes: &[RedisServer]) -> Self {
        let scene = scene(16).await;
        let results = results(&scene);
        Self::with_results(scene, commits, places, nodes, results).await
    }

    async fn with_results(
        scene: Scene,
        commits: usize,
        places: usize,
        nodes: &[RedisServer],
        results: Results,
    ) -> Self {
        let git_dir = history(scene.path(), 21, commits);
        let mut options = GitOptions::new(scene.path().join("mirrors"));
        options.sources = any();
        let target = RedisTarget::parse(&scene.redis.url(), None, None).unwrap();
        let engine = GitEngine::new(&options).await.unwrap();
        let engine =
            Arc::new(Watched { engine, gate: Semaphore::new(places), asked: Mutex::default() });
        let leases: Arc<dyn LeaseStore> = if nodes.is_empty() {
            Arc::new(RedisLeases::new(RedisLeaseOptions::new(target.clone(), Clock::System)))
        } else {
            let target = |node: &RedisServer| RedisTarget::parse(&node.url(), None, None).unwrap();
            Arc::new(QuorumLeases::new(QuorumLeaseOptions {
                ttl: Duration::from_secs(1),
                node_timeout: Duration::from_millis(400),
                ..QuorumLeaseOptions::new(nodes.iter().map(target).collect(), Clock::System)
            }))
        };
        let queue: Arc<dyn Queue> =
            Arc::new(RedisQueue::new(RedisQueueOptions::new(target, WorkerId::random())));
        let results = Arc::new(results);
        let mirrors: Arc<dyn Mirrors> = Arc::new(GitMirrors::new(&options).await.unwrap());
        let parts = GitParts {
            engine: Arc::clone(&engine) as Arc<dyn Engine>,
            mirrors,
            stores: GitStores {
                queue: Arc::clone(&queue),
                leases: Arc::clone(&leases),
                results: Arc::clone(&results),
            },
        };
        let options = GitHandlerOptions {
            git: options,
            batch: 16,
            lease: LEASE,
            heartbeat: Duration::from_millis(50),
        };
        let handler = Arc::new(GitHandler::with_parts(options, parts));
        Self { scene, git_dir, engine, leases, queue, results, handler }
    }

    pub(crate) fn payload(&self, commits: &[ObjectId]) -> String {
        Payload::of_commits("r", self.git_dir.to_str().unwrap(), commits)
    }

    pub(crate) async fn run(&self, payload: &str) -> Result<serde_json::Value, Failure> {
        run(&self.handler, payload).await
    }

    /// The fields of so many entries that were added to the stream, sorted.
    pub(crate) async fn added(&self, entries: u64) -> Vec<Fields> {
        let queue = QueueName::new(QUEUE).unwrap();
        let demand = Demand { entries: 100, bytes: 1 << 20 };
        let mut found = Vec::new();
        while (found.len() as u64) < entries {
            found.extend(self.queue.fetch(&queue, demand, LEASE).await.unwrap());
        }
        let mut fields: Vec<Fields> = found.into_iter().map(|entry| entry.raw.fields).collect();
        fields.sort();
        fields
    }

    pub(crate) async fn statuses(&self) -> HashMap<String, i64> {
        let rows: Vec<(String, i64)> = sqlx::query_as(
            "SELECT status, count(*) FROM queue_worker_git.analyses GROUP BY status",
        )
        .fetch_all(&self.scene.pool)
        .await
        .unwrap();
        rows.into_iter().collect()
    }

    pub(crate) fn asked(&self) -> usize {
        self.engine.asked.lock().unwrap().len()
    }
}

fn any() -> SourcePolicy {
    SourcePolicy { protocols: vec!["file".to_owned()], ..SourcePolicy::default() }
}

fn run_of(payload: &str, cancel: CancellationToken) -> Run {
    let kind = Kind::new("commits").unwrap();
    let payload = Bytes::copy_from_slice(payload.as_bytes());
    let task = Task {
        id: TaskId::new("t").unwrap(),
        queue: QueueName::new(QUEUE).unwrap(),
        hash: PayloadHash::of(&kind, &payload, None),
        kind,
        payload,
        lock_key: None,
        max_attempts: None,
        timeout: None,
        not_before_ms: None,
        traceparent: None,
    };
    Run {
        task: Arc::new(task),
        fence: Fence(1),
        attempt: 1,
        deadline: Clock::System.now() + Duration::from_secs(60),
        deadline_ms: 0,
        cancel,
    }
}

async fn run(handler: &GitHandler, payload: &str) -> Result<serde_json::Value, Failure> {
    let answer = handler.run(run_of(payload, CancellationToken::new())).await?;
    Ok(serde_json::from_slice(&answer.unwrap()).unwrap())
}

fn lock_name(commit: &ObjectId) -> String {
    format!("locks:git:repo:r:commit:{commit}")
}

/// No store is asked before the payload is good.
#[tokio::test]
async fn a_bad_payload_fails_for_good_and_names_the_field() {
    let options = GitHandlerOptions {
        git: GitOptions::new("/nonexistent"),
        batch: 1,
        lease: LEASE,
        heartbeat: LEASE,
    };
    let handler = GitHandler::new(options, || panic!("a store was asked"));
    let id = "1".repeat(40);
    for (payload, named) in [
        ("not json".to_owned(), "JSON"),
        (r#"{"repo":"r","url":"https://a/b"}"#.to_owned(), "`commits`"),
        (r#"{"repo":"r","url":"https://a/b","commit":"HEAD"}"#.to_owned(), "`commit`"),
        (format!(r#"{{"repo":"","url":"https://a/b","commit":"{id}"}}"#), "`repo`"),
        (format!(r#"{{"repo":"r","url":"ext::sh","commit":"{id}"}}"#), "`url`"),
        (format!(r#"{{"repo":"r","url":"/srv/x","commit":"{id}"}}"#), "protocol file"),
        (format!(r#"{{"repo":"r","url":"https://u:p@a/b","commit":"{id}"}}"#), "password"),
    ] {
        let failure = run(&handler, &payload).await.expect_err(&payload);
        assert_eq!(failure.class, FailureClass::ForGood, "{payload}");
        assert!(failure.message.contains(named), "{payload}: {}", failure.message);
    }
}

#[tokio::test]
async fn what_is_done_is_not_done_again() {
    let ground = Ground::new(30).await;
    let commits = all_commits(&ground.git_dir);
    let said = ground.run(&ground.payload(&commits[..20])).await.unwrap();
    assert_eq!((&said["analysed"], &said["known"]), (&20.into(), &0.into()));
    let said = ground.run(&ground.payload(&commits)).await.unwrap();
    assert_eq!(said["known"], 20);
    assert_eq!(ground.asked(), commits.len());
    let one =
        format!(r#"{{"repo":"r","url":"{}","commit":"{}"}}"#, ground.git_dir.display(), commits[0]);
    assert_eq!(ground.run(&one).await.unwrap()["known"], 1);
    assert_eq!(ground.asked(), commits.len());
    assert_eq!(ground.scene.locks().await, Vec::<String>::new());
}

/// A range and a whole repository add the same tasks each time.
#[tokio::test]
async fn a_fan_out_adds_the_same_tasks_each_time() {
    let ground = Ground::new(40).await;
    let all = Payload::of_all("r", ground.git_dir.to_str().unwrap());
    let mut rounds = Vec::new();
    for _ in 0..2 {
        let said = ground.run(&all).await.unwrap();
        let tasks = said["tasks"].as_u64().unwrap();
        rounds.push((said, ground.added(tasks).await));
    }
    let newest = |at: usize| {
        let newest: &serde_json::Value = &rounds[at].0["newest"];
        newest.as_str().unwrap().parse::<EntryId>().unwrap()
    };
    assert!(newest(0) < newest(1));
    rounds[1].0["newest"] = rounds[0].0["newest"].clone();
    assert_eq!(rounds[0], rounds[1]);
    let (said, fields) = &rounds[0];
    let commits = all_commits(&ground.git_dir);
    assert_eq!(said["commits"], commits.len());
    let mut named = HashSet::new();
    for fields in fields {
        let payload = &fields.iter().find(|(name, _)| name == "payload").unwrap().1;
        let payload: serde_json::Value = serde_json::from_slice(payload).unwrap();
        let ids = payload["commits"].as_array().unwrap();
        assert!(ids.len() <= 16);
        named.extend(ids.iter().map(|id| id.as_str().unwrap().to_owned()));
    }
    assert_eq!(named, commits.iter().map(ToString::to_string).collect());
    assert_eq!(ground.statuses().await["queued"], i64::try_from(commits.len()).unwrap());
    // What is queued is claimed as it is.
    ground.run(&ground.payload(&commits[..5])).await.unwrap();
    assert_eq!(ground.statuses().await["succeeded"], 5);
}

/// Of commits that others have in part, the free ones are done at once and the rest when it is free.
#[tokio::test]
async fn commits_that_others_have_are_waited_for() {
    let ground = Ground::new(30).await;
    let commits = all_commits(&ground.git_dir)[..10].to_vec();
    let mut held = Vec::new();
    for commit in &commits[..3] {
        match ground.leases.acquire(&lock_name(commit)).await.unwrap() {
            Acquired::Granted(lock) => held.push(lock),
            taken @ Acquired::Taken { .. } => panic!("{taken:?}"),
        }
    }
    let payload = ground.payload(&commits);
    let running = ground.run(&payload);
    let releasing = async {
        wait_for("the free ones", async || ground.statuses().await.get("succeeded") == Some(&7))
            .await;
        assert_eq!(ground.asked(), 7);
        for lock in &held {
            ground.leases.release(lock).await.unwrap();
        }
    };
    let (said, ()) = tokio::join!(running, releasing);
    assert_eq!(said.unwrap()["analysed"], 10);
    assert_eq!(ground.asked(), 10);
}

#[tokio::test]
async fn patience_with_others_ends_and_burns_no_attempt() {
    let ground = Ground::new(30).await;
    let commits = all_commits(&ground.git_dir)[..4].to_vec();
    let Acquired::Granted(_) = ground.leases.acquire(&lock_name(&commits[0])).await.unwrap() else {
        panic!("somebody else has it");
    };
    let failure = ground.run(&ground.payload(&commits)).await.unwrap_err();
    assert!(matches!(failure.class, FailureClass::Postponed { .. }), "{failure:?}");
    assert_eq!(ground.statuses().await, HashMap::from([("succeeded".to_owned(), 3)]));
}

/// A lock that another takes away takes the commit away, and nothing is written of it.
#[tokio::test]
async fn a_lost_lock_takes_its_commit_away() {
    let ground = Ground::with_gate(30, 0).await;
    let commits = all_commits(&ground.git_dir)[..2].to_vec();
    let payload = ground.payload(&commits);
    let running = ground.run(&payload);
    let stealing = async {
        wait_for("the engine", async || ground.asked() == 2).await;
        let mut redis = ground.scene.redis_connection().await;
        let _: () = redis::cmd("SET")
            .arg(lock_name(&commits[0]))
            .arg("another")
            .query_async(&mut redis)
            .await
            .unwrap();
        // A beat sets a lock again that is gone; the second has taken note of what the first heard.
        for _ in 0..2 {
            let kept = lock_name(&commits[1]);
            let _: () = redis::cmd("DEL").arg(&kept).query_async(&mut redis).await.unwrap();
            wait_for("a beat", async || {
                let mut exists = redis::cmd("EXISTS");
                exists.arg(&kept).query_async::<bool>(&mut redis.clone()).await.unwrap()
            })
            .await;
        }
        ground.engine.gate.add_permits(1000);
    };
    let (answer, ()) = tokio::join!(running, stealing);
    let failure = answer.unwrap_err();
    assert!(matches!(failure.class, FailureClass::Postponed { .. }), "{failure:?}");
    let expected = [("succeeded".to_owned(), 1), ("released".to_owned(), 1)];
    assert_eq!(ground.statuses().await, HashMap::from(expected));
    assert_eq!(ground.asked(), 2);
}

#[tokio::test]
async fn an_older_fence_writes_nothing() {
    let ground = Ground::new(20).await;
    let commits = all_commits(&ground.git_dir)[..2].to_vec();
    let url = ground.git_dir.to_str().unwrap();
    let source = Source::new("r", url, &any()).unwrap();
    let place = ground.results.place(&source, ground.engine.profile()).await.unwrap();
    let outcomes = outcomes(&ground.engine.engine, &ground.git_dir, &commits).await;
    let old = ground.results.claim(place, &commits, "old").await.unwrap();
    let new = ground.results.claim(place, &commits[..1], "new").await.unwrap();
    assert_eq!(new[0].fence, 2);
    let finish = |claim: &Claim| Finished {
        claim: *claim,
        outcome: &outcomes[&claim.id],
        took: Duration::from_millis(1),
    };
    let finished = |claims: &[Claim]| claims.iter().map(finish).collect::<Vec<Finished<'_>>>();
    // One of the two is stale: the other is written, and nothing of the first.
    let written = ground.results.write(place, &finished(&old)).await.unwrap();
    assert_eq!(written.len(), 1);
    assert!(!written.contains(&new[0].key));
    assert_eq!(ground.scene.count("SELECT count(*) FROM queue_worker_git.commits").await, 1);
    ground.results.give_back(&old).await.unwrap();
    assert_eq!(ground.statuses().await["running"], 1);
    let written = ground.results.write(place, &finished(&new)).await.unwrap();
    assert_eq!(written.len(), 1);
    // A second time it is done, and no claim is granted.
    assert!(ground.results.write(place, &finished(&new)).await.unwrap().is_empty());
    assert!(ground.results.claim(place, &commits, "late").await.unwrap().is_empty());
    assert_eq!(ground.scene.count("SELECT count(*) FROM queue_worker_git.commits").await, 2);
}

/// A commit whose rows Postgres does not take in time fails alone, with the evidence, and that counts.
#[tokio::test]
async fn a_commit_that_cannot_be_written_in_time_fails_alone() {
    let ground = Ground::with_call_time(20, Duration::from_secs(2)).await;
    let commits = all_commits(&ground.git_dir)[..5].to_vec();
    let slow = commits[2];
    for statement in [
        format!(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                IF encode(NEW.oid, 'hex') = '{slow}' THEN PERFORM pg_sleep(60); END IF; \
                RETURN NEW; END $$"
        ),
        "CREATE TRIGGER slow BEFORE INSERT ON queue_worker_git.commits \
            FOR EACH ROW EXECUTE FUNCTION slow()"
            .to_owned(),
    ] {
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&ground.scene.pool).await.unwrap();
    }
    let failure = ground.run(&ground.payload(&commits)).await.unwrap_err();
    assert!(matches!(failure.class, FailureClass::Retry { .. }), "{failure:?}");
    for part in ["1 of 5 commits", &slow.to_string(), "changed paths not written", "timeout"] {
        assert!(failure.message.contains(part), "{part}: {}", failure.message);
    }
    let expected = [("succeeded".to_owned(), 4), ("released".to_owned(), 1)];
    assert_eq!(ground.statuses().await, HashMap::from(expected));
    let detail = "SELECT count(*) FROM queue_worker_git.analyses \
                  WHERE status = 'released' AND error_detail LIKE '%changed paths not written%'";
    assert_eq!(ground.scene.count(detail).await, 1);
    sqlx::query("DROP FUNCTION slow CASCADE").execute(&ground.scene.pool).await.unwrap();
    assert_eq!(ground.run(&ground.payload(&commits)).await.unwrap()["analysed"], 1);
}

async fn outcomes(
    engine: &GitEngine,
    git_dir: &Path,
    commits: &[ObjectId],
) -> HashMap<ObjectId, Outcome> {
    crate::repository::outcomes(engine, &crate::repository::unlocked(git_dir), commits).await
}

/// Whoever is asked to stop gives everything back at once.
#[tokio::test]
async fn an_interrupted_run_leaves_nothing_held() {
    let ground = Ground::with_gate(20, 0).await;
    let commits = all_commits(&ground.git_dir)[..5].to_vec();
    let cancel = CancellationToken::new();
    let running = ground.handler.run(run_of(&ground.payload(&commits), cancel.clone()));
    let stopping = async {
        wait_for("the engine", async || ground.asked() == 5).await;
        cancel.cancel();
    };
    let (answer, ()) = tokio::join!(running, stopping);
    assert!(answer.is_err());
    assert_eq!(ground.statuses().await, HashMap::from([("released".to_owned(), 5)]));
    let mut redis = ground.scene.redis_connection().await;
    let locks: Vec<String> =
        redis::cmd("KEYS").arg("locks:*").query_async(&mut redis).await.unwrap();
    assert_eq!(locks, Vec::<String>::new());
}

/// Every question that a report asks can be asked.
#[tokio::test]
async fn every_report_can_be_asked_for() {
    use queue_worker::handler::git::results::{Report, Scope};
    let ground = Ground::new(40).await;
    let commits = all_commits(&ground.git_dir);
    ground.run(&ground.payload(&commits)).await.unwrap();
    let place = ground.results.find("r", None).await.unwrap().unwrap();
    for report in Report::ALL {
        let grid = ground.results.report(report, Scope { place, limit: 5 }).await.unwrap();
        assert!(grid.rows.len() <= 5);
        assert!(grid.rows.iter().all(|row| row.len() == grid.columns.len()));
        assert_eq!(grid.rows.is_empty(), report == Report::Refused, "{}", report.name());
    }
    assert_eq!(ground.results.names().await.unwrap(), ["r"]);
    assert_eq!(ground.results.find("other", None).await.unwrap(), None);
}

/// What the operator has to mend burns no attempt.
#[tokio::test]
async fn a_missing_schema_is_waited_for() {
    let ground = Ground::new(10).await;
    let commits = all_commits(&ground.git_dir)[..2].to_vec();
    sqlx::query("DROP SCHEMA queue_worker_git CASCADE").execute(&ground.scene.pool).await.unwrap();
    let failure = ground.run(&ground.payload(&commits)).await.unwrap_err();
    assert!(matches!(failure.class, FailureClass::Postponed { .. }), "{failure:?}");
    assert!(failure.message.contains("queue-worker migrate"), "{}", failure.message);
    let migrated = ground.scene.command(["migrate"]).status().await.unwrap();
    assert!(migrated.success());
    assert_eq!(ground.run(&ground.payload(&commits)).await.unwrap()["analysed"], 2);
}

/// The names and addresses that the mailmap of the default branch gives people, by git.
fn canonical(git_dir: &Path, people: &[(String, String)]) -> Vec<(String, String)> {
    let ask: Vec<String> = people.iter().map(|(name, email)| format!("{name} <{email}>")).collect();
    let blob = ["-c", "mailmap.blob=HEAD:.mailmap", "check-mailmap"];
    let arguments: Vec<&str> = blob.into_iter().chain(ask.iter().map(String::as_str)).collect();
    let pair = |line: &str| {
        let (name, email) = line.rsplit_once('<').unwrap();
        (name.trim().to_owned(), email.trim_end_matches('>').to_owned())
    };
    line(git_dir, &arguments).lines().map(pair).collect()
}

/// The view of people is git's own reading of the mailmap.
#[tokio::test]
async fn people_are_who_the_mailmap_says() {
    let ground = Ground::new(60).await;
    let commits = all_commits(&ground.git_dir);
    ground.run(&Payload::of_all("r", ground.git_dir.to_str().unwrap())).await.unwrap();
    ground.run(&ground.payload(&commits)).await.unwrap();
    let people: Vec<(String, String, String, String)> =
        sqlx::query_as("SELECT raw_name, raw_email, name, email FROM queue_worker_git.people")
            .fetch_all(&ground.scene.pool)
            .await
            .unwrap();
    let raw: Vec<_> = people.iter().map(|it| (it.0.clone(), it.1.clone())).collect();
    let by_git = canonical(&ground.git_dir, &raw);
    let ours: Vec<_> = people.iter().map(|it| (it.2.clone(), it.3.clone())).collect();
    assert_eq!(ours, by_git);
    assert_ne!(ours, raw, "the mailmap says something");
}

/// The locks that a server has, of those with that prefix.
async fn locks_on(node: &RedisServer) -> usize {
    let client = redis::Client::open(node.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let found: Vec<String> = redis::cmd("KEYS")
        .arg("locks:git:repo:r:commit:*")
        .query_async(&mut connection)
        .await
        .unwrap();
    found.len()
}

/// Where locks need a majority, one node may go in the middle of a task.
#[tokio::test]
async fn a_majority_holds_the_locks_of_commits() {
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(RedisServer::start(RedisOptions::volatile()).await.unwrap());
    }
    let ground = Ground::with_lock_nodes(20, 0, &nodes).await;
    // A node that has just started has no vote until what it may have forgotten has ended.
    wait_for("the nodes to vote", async || match ground.leases.acquire("a try").await {
        Ok(Acquired::Granted(lock)) => ground.leases.release(&lock).await.is_ok(),
        Ok(Acquired::Taken { .. }) | Err(_) => false,
    })
    .await;
    let commits = all_commits(&ground.git_dir)[..6].to_vec();
    let payload = ground.payload(&commits);
    let running = ground.run(&payload);
    let meanwhile = async {
        wait_for("the engine", async || ground.asked() == 6).await;
        let mut held = 0;
        for node in &nodes {
            held += usize::from(locks_on(node).await == 6);
        }
        assert!(held >= 2, "{held} of 3 nodes have the locks");
        nodes[0].kill();
        ground.engine.gate.add_permits(1000);
    };
    let (said, ()) = tokio::join!(running, meanwhile);
    assert_eq!(said.unwrap()["analysed"], 6);
    for node in &nodes[1..] {
        assert_eq!(locks_on(node).await, 0);
    }
}
