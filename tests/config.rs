//! The configuration from outside: errors with place and remedy, the environment, secrets, the
//! generated reference.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use queue_worker::config::{
    Config, ConfigError, Environment, HandlerAction, Problem, ReloadPlan, default_toml, in_force,
    reference_keys, reference_md, reloadable,
};

const QUEUE: &str = "[[queue]]\nname = \"mail\"\n";

fn parse_with(text: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let environment: Environment = variables.iter().copied().collect();
    Config::parse(text, Path::new("config/qw.toml"), &environment)
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    parse_with(text, &[])
}

fn only_problem(text: &str, variables: &[(&str, &str)]) -> Problem {
    let error = parse_with(text, variables).expect_err(text);
    assert_eq!(error.problems.len(), 1, "{error}");
    error.problems[0].clone()
}

/// A bad text, the line, the key, a part of the message and a part of the remedy.
type BadCase = (&'static str, Option<usize>, &'static str, &'static str, &'static str);

const BAD: &[BadCase] = &[
    (
        "[lease]\nheartbeat = \"soon\"\n",
        Some(2),
        "lease.heartbeat",
        "\"soon\" is not a duration",
        "\"1500ms\"",
    ),
    ("[lease]\nttl = 5\n", Some(2), "lease.ttl", "5 has no unit", "\"5s\""),
    ("[lease]\nttl = \"0s\"\n", Some(2), "lease.ttl", "no time at all", "\"1ms\""),
    (
        "[lease]\nheartbet = \"1s\"\n",
        Some(2),
        "lease.heartbet",
        "not a known key",
        "did you mean \"heartbeat\"?",
    ),
    ("[leases]\nttl = \"5s\"\n", Some(1), "leases", "not a known key", "did you mean \"lease\"?"),
    (
        "[lease]\nheartbeat = \"2s\"\n",
        Some(2),
        "lease.heartbeat",
        "shorter than three heartbeats",
        "\"6500ms\"",
    ),
    (
        "[retention]\nsucceeded = \"1h\"\n",
        Some(2),
        "retention.succeeded",
        "rows are kept for 1h, less than unknown_kind.give_up = 1d",
        "\"1d\"",
    ),
    ("[lease]\nttl = \"9s\"\n", Some(2), "lease.ttl", "minimum idle time 5s is shorter", "\"9s\""),
    (
        "[lease]\nsweep = \"6s\"\n",
        Some(2),
        "lease.sweep",
        "rarer than the ttl 5s",
        "\"5s\" or less",
    ),
    (
        "[web]\nlisten = \"0.0.0.0:9464\"\n",
        Some(2),
        "web.listen",
        "other machines can reach 0.0.0.0:9464",
        "allow_remote = true",
    ),
    (
        "[web]\nlisten = \"localhost:9464\"\n",
        Some(2),
        "web.listen",
        "is not an address with a port",
        "\"127.0.0.1:9464\"",
    ),
    ("[web]\nallow_remote = 1\n", Some(2), "web.allow_remote", "not true or false", "true"),
    (
        "[lease]\nnodes = \"redis://a:hunter2@a\"\n",
        Some(2),
        "lease.nodes",
        "not a list of URLs",
        "write it like",
    ),
    (
        "[lease]\nnodes = [\"redis://a\", \"redis://b\"]\n",
        Some(2),
        "lease.nodes",
        "2 nodes are no sound majority",
        "from 3 to 15",
    ),
    (
        "[lease]\nnodes = [\"redis://a\", \"redis://b\", \"redis://c\", \"redis://d\"]\n",
        Some(2),
        "lease.nodes",
        "4 nodes",
        "odd number",
    ),
    (
        "[lease]\nnodes = [\"redis://a\", \"redis://b\", \"redis://:hunter2@A:6379/1\"]\n",
        Some(2),
        "lease.nodes",
        "names redis://A:6379/1 twice",
        "each server once",
    ),
    (
        "[lease]\nnodes = [\"redis://a\", \"redis://b\", \"http://c\"]\n",
        Some(2),
        "lease.nodes",
        "scheme \"http\" does not fit",
        "rediss",
    ),
    (
        "[lease]\nnode_timeout = \"600ms\"\n",
        Some(2),
        "lease.node_timeout",
        "longer than the call timeout 500ms",
        "\"500ms\" or less",
    ),
    (
        "[drain]\ntimeout = \"85s\"\nstop_timeout = \"90s\"\n",
        Some(2),
        "drain.timeout",
        "are 95s, more than the 90s",
        "TimeoutStopSec",
    ),
    (
        "[drain]\nstop_timeout = \"30s\"\n",
        Some(2),
        "drain.stop_timeout",
        "more than the 30s of drain.stop_timeout",
        "\"35s\"",
    ),
    (
        "[worker]\npayload_budget = 64\n",
        Some(2),
        "worker.payload_budget",
        "64 has no unit",
        "\"64KiB\"",
    ),
    (
        "[worker]\npayload_budget = \"64MB\"\n",
        Some(2),
        "worker.payload_budget",
        "is not a size",
        "\"64MiB\"",
    ),
    (
        "[worker]\npayload_budget = \"1KiB\"\n",
        Some(2),
        "worker.payload_budget",
        "does not fit",
        "raise",
    ),
    (
        "[worker]\nmax_in_flight = -1\n",
        Some(2),
        "worker.max_in_flight",
        "-1 is out of range",
        "from 0",
    ),
    (
        "[worker]\nmax_in_flight = 0\n",
        Some(2),
        "worker.max_in_flight",
        "0 is out of range",
        "from 1",
    ),
    (
        "[worker]\nthreads = \"four\"\n",
        Some(2),
        "worker.threads",
        "\"four\" is not a whole number",
        "16",
    ),
    (
        "[redis]\npassword = \"hunter2\"\n",
        Some(2),
        "redis.password",
        "secrets do not belong",
        "password_file",
    ),
    (
        "[postgres]\npassword = \"hunter2\"\n",
        Some(2),
        "postgres.password",
        "secrets do not belong",
        "password_file",
    ),
    (
        "[redis]\nurl = \"redis:///0\"\n",
        Some(2),
        "redis.url",
        "names no host",
        "redis+unix:///path",
    ),
    (
        "[handler.x]\ntype = \"exec\"\ncommand = [\"/x\"]\nworking_dir = \"x\"\n",
        Some(4),
        "handler.x.working_dir",
        "relative path",
        "from the root",
    ),
    (
        "[redis]\nurl = \"http://h\"\n",
        Some(2),
        "redis.url",
        "scheme \"http\" does not fit",
        "rediss",
    ),
    (
        "[redis]\nurl = \"redis://:hunter2@[\"\n",
        Some(2),
        "redis.url",
        "is not a URL",
        "percent-encoded",
    ),
    (
        "[redis]\nurl = \"redis://:hunter2@h\"\npassword_file = \"/p\"\n",
        Some(3),
        "redis.password_file",
        "URL has a password too",
        "remove",
    ),
    (
        "[postgres]\nlock_timeout = \"9s\"\n",
        Some(2),
        "postgres.lock_timeout",
        "longer than the call timeout 5s",
        "lower",
    ),
    (
        "[lease]\nttl = \"3h\"\nmin_idle = \"3h\"\n[postgres]\ncall_timeout = \"25h\"\n",
        Some(5),
        "postgres.call_timeout",
        "25h is no deadline for a call",
        "\"1d\" or less",
    ),
    (
        "[redis]\nconnect_timeout = \"13d\"\n",
        Some(2),
        "redis.connect_timeout",
        "13d is no deadline",
        "lower it",
    ),
    (
        "[postgres]\ncommitters = 9\n",
        Some(2),
        "postgres.committers",
        "9 committers share 8",
        "raise",
    ),
    (
        "[[queue]]\nname = \"mail\"\n",
        Some(1),
        "queue.mail",
        "two queues named \"mail\"",
        "another name",
    ),
    (
        "[[queue]]\nname = \"a b\"\n",
        Some(2),
        "queue.a b.name",
        "not a queue name",
        "letters, digits",
    ),
    ("[[queue]]\nconcurrency = 4\n", Some(1), "queue.0.name", "is missing", "name = \"mail\""),
    (
        "[[queue]]\nname = \"b\"\nconcurrency = 10001\n",
        Some(3),
        "queue.b.concurrency",
        "out of range",
        "1 to 10000",
    ),
    (
        "[[queue]]\nname = \"b\"\nmax_payload = \"0B\"\n",
        Some(3),
        "queue.b.max_payload",
        "is zero",
        "KiB",
    ),
    ("[handler.x]\ntimeout = \"5s\"\n", Some(1), "handler.x.type", "is missing", "type = \"exec\""),
    (
        "[handler.x]\ntype = \"shell\"\n",
        Some(2),
        "handler.x.type",
        "\"shell\" is not a type",
        "\"http\"",
    ),
    ("[handler.x]\ntype = \"exec\"\n", Some(1), "handler.x.command", "is missing", "command = ["),
    (
        "[handler.x]\ntype = \"exec\"\ncommand = \"ls -l\"\n",
        Some(3),
        "handler.x.command",
        "not a list of strings",
        "[\"/usr/bin/env\"",
    ),
    (
        "[handler.x]\ntype = \"exec\"\ncommand = []\n",
        Some(3),
        "handler.x.command",
        "names no program",
        "write the program",
    ),
    (
        "[handler.x]\ntype = \"exec\"\ncommand = [\"bin/x\"]\n",
        Some(3),
        "handler.x.command",
        "relative path",
        "from the root",
    ),
    (
        "[handler.x]\ntype = \"exec\"\ncommand = [\"ls -l\"]\n",
        Some(3),
        "handler.x.command",
        "is not on PATH",
        "no shell",
    ),
    (
        "[handler.x]\ntype = \"exec\"\ncommand = [\"/bin/x\"]\nstatement = \"\"\n",
        Some(4),
        "handler.x.statement",
        "not a known key",
        "one of",
    ),
    (
        "[handler.x]\ntype = \"exec\"\ncommand = [\"/x\"]\nmemory_max = \"512KiB\"\n",
        Some(4),
        "handler.x.memory_max",
        "no program can even start",
        "\"1MiB\"",
    ),
    (
        "[handler.x]\ntype = \"exec\"\ncommand = [\"/x\"]\npids_max = 0\n",
        Some(4),
        "handler.x.pids_max",
        "out of range",
        "1 to 4194304",
    ),
    (
        "[handler.x]\ntype = \"exec\"\ncommand = [\"/x\"]\ncpu_weight = 10001\n",
        Some(4),
        "handler.x.cpu_weight",
        "out of range",
        "1 to 10000",
    ),
    (
        "[handler.x]\ntype = \"http\"\nurl = \"http://h\"\nmemory_max = \"1GiB\"\n",
        Some(4),
        "handler.x.memory_max",
        "not a known key",
        "one of",
    ),
    (
        "[handler.x]\ntype = \"sql\"\nstatement = \"x\"\nbatch = 257\n",
        Some(4),
        "handler.x.batch",
        "out of range",
        "1 to 256",
    ),
    (
        "[handler.x]\ntype = \"sql\"\nstatement = \"x\"\nbackoff_base = \"6m\"\n",
        Some(4),
        "handler.x.backoff_base",
        "longer than the longest 5m",
        "backoff_max",
    ),
    (
        "[handler.x]\ntype = \"http\"\nurl = \"ftp://h\"\n",
        Some(3),
        "handler.x.url",
        "scheme \"ftp\"",
        "https",
    ),
    (
        "[handler.x]\ntype = \"http\"\nurl = \"http://h\"\n[handler.x.headers]\nAuthorization = \"Bearer hunter2\"\n",
        Some(4),
        "handler.x.headers",
        "is a secret",
        "bearer_file",
    ),
    (
        "[handler.\"\"]\ntype = \"sql\"\nstatement = \"x\"\n",
        Some(1),
        "handler.",
        "not a kind of task",
        "control characters",
    ),
    (
        "[log]\nformat = \"xml\"\n",
        Some(2),
        "log.format",
        "\"xml\" is not a log format",
        "\"journald\"",
    ),
    (
        "[log]\nlevel = \"verbose\"\n",
        Some(2),
        "log.level",
        "\"verbose\" is not a log level",
        "\"info\"",
    ),
    ("[log]\nlevel = \"queue_worker=loud\"\n", Some(2), "log.level", "is no filter", "\"info\""),
    ("[log]\nlevel = \"\"\n", Some(2), "log.level", "is empty", "\"info\""),
    ("[log]\nlevel = \" ,\"\n", Some(2), "log.level", "is empty", "\"info\""),
    ("[lease]\nheartbeat = \"1ms\"\n", Some(2), "lease.heartbeat", "too short", "\"100ms\""),
    ("[lease]\nsweep = \"1ms\"\n", Some(2), "lease.sweep", "too short", "\"50ms\""),
    ("[lease]\nnode_timeout = \"1ms\"\n", Some(2), "lease.node_timeout", "too short", "\"5ms\""),
    (
        "[lease]\nmin_idle = \"3650d\"\n",
        Some(2),
        "lease.min_idle",
        "more than 100 times lease.ttl = 5s",
        "\"500s\" or less",
    ),
    (
        "[postgres]\ncall_timeout = \"1d\"\n",
        Some(2),
        "postgres.call_timeout",
        "more than 10 times lease.ttl = 5s",
        "\"50s\" or less",
    ),
    (
        "[worker]\nmax_in_flight = 10\n[[queue]]\nname = \"b\"\nconcurrency = 10000\n",
        Some(5),
        "queue.b.concurrency",
        "10000 do not fit into worker.max_in_flight = 10",
        "raise worker.max_in_flight",
    ),
    ("[web]\nlisten = \"127.0.0.1:0\"\n", Some(2), "web.listen", "any free port", "9464"),
    (
        "[retention]\ndead_letters = \"1ms\"\n",
        Some(2),
        "retention.dead_letters",
        "before anybody has seen it",
        "\"1h\"",
    ),
    (
        "[retention]\ndead_letters = \"31d\"\n",
        Some(2),
        "retention.dead_letters",
        "without its row a letter cannot be requeued",
        "raise retention.failed to \"31d\"",
    ),
    ("lease = 5\n", Some(1), "lease", "is not a table", "[lease]"),
    ("[lease\nttl = \"5s\"\n", Some(1), "", "is not TOML", "correct it"),
    ("[lease]\nttl = \"5s\"\nttl = \"6s\"\n", Some(3), "", "is not TOML", "correct it"),
];

#[test]
fn bad_files_are_refused_with_place_and_remedy() {
    for (bad, line, key, message, remedy) in BAD {
        // The queue that every file needs comes last, so that lines count from the bad text.
        let text = format!("{bad}{QUEUE}");
        let text = if *key == "queue.mail" { format!("{QUEUE}{bad}") } else { text };
        let line = if *key == "queue.mail" { Some(3) } else { *line };
        let problem = only_problem(&text, &[]);
        assert_eq!(problem.file.as_deref(), Some(Path::new("config/qw.toml")), "{problem}");
        assert_eq!(problem.line, line, "{problem}");
        assert!(problem.column.is_some(), "{problem}");
        assert_eq!(problem.key, *key, "{problem}");
        assert!(problem.message.contains(message), "{problem}");
        assert!(problem.remedy.contains(remedy), "{problem}");
        assert!(!problem.to_string().contains("hunter2"), "{problem}");
        assert_eq!(problem.to_string().lines().count(), 1, "{problem}");
    }
}

#[test]
fn a_problem_reads_like_a_compiler_error() {
    let problem = only_problem("[lease]\n  heartbeat = \"soon\"\n[[queue]]\nname='q'\n", &[]);
    assert_eq!(
        problem.to_string(),
        "config/qw.toml:2: lease.heartbeat: \"soon\" is not a duration; \
         write it like \"1500ms\" or \"45s\""
    );
    assert_eq!(problem.column, Some(3));
}

#[test]
fn all_problems_of_a_stage_are_told_at_once() {
    let error = parse("[lease]\nttl = 5\nx = 1\n[worker]\nthreads = true\n").expect_err("bad");
    let keys: Vec<&str> = error.problems.iter().map(|p| p.key.as_str()).collect();
    assert_eq!(keys, ["worker.threads", "lease.ttl", "lease.x", "queue"]);
    assert_eq!(error.to_string().lines().count(), 4);

    let rules = "[lease]\nsweep = \"9s\"\n[drain]\nmargin = \"1s\"\n[[queue]]\nname = \"q\"\n";
    assert_eq!(parse(rules).expect_err("bad").problems.len(), 2);
}

#[test]
fn no_queue_is_refused() {
    let problem = only_problem("", &[]);
    assert_eq!((problem.key.as_str(), problem.line), ("queue", None));
    assert!(problem.remedy.contains("[[queue]]"));
}

#[test]
fn a_missing_file_is_named() {
    let path = Path::new("/nonexistent/qw.toml");
    let error = Config::load(path, &Environment::default()).expect_err("missing");
    assert!(error.to_string().starts_with("/nonexistent/qw.toml: cannot be read: "), "{error}");
    assert!(error.to_string().contains("; create it"), "{error}");
}

#[test]
fn forged_keys_stay_on_one_line() {
    let problem = only_problem("\"a\\nb\" = 1\n[[queue]]\nname = \"q\"\n", &[]);
    assert_eq!(problem.to_string().lines().count(), 1, "{problem}");
}

#[test]
fn bad_variables_are_named() {
    let cases: &[(&str, &str, &str, &str)] = &[
        ("QUEUE_WORKER_LEASE__TTL", "soon", "is not a duration", "\"45s\""),
        ("QUEUE_WORKER_LEASE__TLL", "5s", "not a known key", "did you mean \"ttl\"?"),
        ("QUEUE_WORKER_LEESE__TTL", "5s", "not a known key", "did you mean \"lease\"?"),
        ("QUEUE_WORKER_LEASE__TTL__X", "5s", "one part too many", "SECTION__KEY"),
        ("QUEUE_WORKER_QUEUE__NAME", "x", "does not say which queue", "QUEUE__0__KEY"),
        ("QUEUE_WORKER_QUEUE__7__CONCURRENCY", "1", "names no queue", "from 0 to 1"),
        ("QUEUE_WORKER_QUEUE__MAIL__CONCURRENCY", "many", "is not a whole number", "16"),
        ("QUEUE_WORKER_HANDLER__TIMEOUT", "5s", "does not say which handler", "KIND"),
        ("QUEUE_WORKER_HANDLER__X__TIMEOUT", "5s", "is missing", "type = "),
        ("QUEUE_WORKER_LEASE__HEARTBEAT", "2s", "shorter than three heartbeats", "6500ms"),
        ("QUEUE_WORKER_WORKER__THREADS", "", "is not a whole number", "16"),
        ("QUEUE_WORKER_LEASE_TTL", "10s", "one `_` is missing", "write QUEUE_WORKER_LEASE__TTL"),
        ("QUEUE_WORKER_REDIS_PASSWORD", "hunter2", "missing", "QUEUE_WORKER_REDIS__PASSWORD"),
        (
            "QUEUE_WORKER_UNKNOWN_KIND_GIVE_UP",
            "1d",
            "one `_` is missing",
            "QUEUE_WORKER_UNKNOWN_KIND__GIVE_UP",
        ),
        (
            "QUEUE_WORKER_QUEUE_MAIL_MAX_PAYLOAD",
            "1KiB",
            "one `_` is missing",
            "QUEUE_WORKER_QUEUE__MAIL__MAX_PAYLOAD",
        ),
        (
            "QUEUE_WORKER_HANDLER_X_TIMEOUT",
            "1s",
            "one `_` is missing",
            "QUEUE_WORKER_HANDLER__X__TIMEOUT",
        ),
    ];
    for (name, text, message, remedy) in cases {
        let problem = only_problem(QUEUE, &[(name, text)]);
        assert_eq!(problem.variable.as_deref(), Some(*name), "{problem}");
        assert_eq!((&problem.file, problem.line), (&None, None), "{problem}");
        assert!(problem.message.contains(message), "{problem}");
        assert!(problem.remedy.contains(remedy), "{problem}");
        assert!(problem.to_string().starts_with(&format!("{name}: ")), "{problem}");
        assert!(!problem.to_string().contains("hunter2"), "{problem}");
    }
}

#[test]
fn other_variables_are_left_alone() {
    let mut variables = vec![("QUEUE_WORKER_CONFIG", "/x"), ("OTHER__X", "y")];
    // What a task is told of its run, which may enqueue others.
    let run = ["TASK_ID", "KIND", "QUEUE", "ATTEMPT", "FENCE", "DEADLINE_MS", "RUN"]
        .map(|name| format!("QUEUE_WORKER_{name}"));
    variables.extend(run.iter().map(|name| (name.as_str(), "1")));
    assert!(parse_with(QUEUE, &variables).is_ok());
}

#[test]
fn of_two_passwords_neither_is_taken() {
    for section in ["redis", "postgres", "lease"] {
        let text = format!("{QUEUE}[{section}]\npassword_file = \"/x\"\n");
        let variable = format!("QUEUE_WORKER_{}__PASSWORD", section.to_ascii_uppercase());
        let problem = only_problem(&text, &[(&variable, "hunter2")]);
        assert_eq!(problem.key, format!("{section}.password_file"), "{problem}");
        assert!(problem.message.contains(&format!("{section}.password in")), "{problem}");
        assert!(!problem.to_string().contains("hunter2"), "{problem}");
    }
}

#[test]
fn a_default_concurrency_may_be_more_than_fits() {
    parse(&format!("[worker]\nmax_in_flight = 10\n{QUEUE}")).expect("a configuration");
}

#[test]
fn a_missing_file_beside_others_names_one_of_them() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("jobs.toml"), QUEUE).expect("written");
    let absent = folder.path().join("queue-worker.toml");
    let error = Config::load(&absent, &Environment::default()).expect_err("missing").to_string();
    assert!(error.contains("jobs.toml") && error.contains("queue-worker-jobs"), "{error}");
    assert!(!error.contains("create it"), "{error}");
}

#[test]
fn queues_and_handlers_are_found_by_name_and_place() {
    let text = "[[queue]]\nname = \"mail\"\n[[queue]]\nname = \"git.fetch\"\n\
                [handler.\"git.analyse\"]\ntype = \"sql\"\nstatement = \"x\"\n";
    let config = parse_with(
        text,
        &[
            ("QUEUE_WORKER_QUEUE__MAIL__CONCURRENCY", "3"),
            ("QUEUE_WORKER_QUEUE__GIT_FETCH__CONCURRENCY", "4"),
            ("QUEUE_WORKER_QUEUE__1__MAX_PAYLOAD", "1KiB"),
            ("QUEUE_WORKER_QUEUE__2__NAME", "third"),
            ("QUEUE_WORKER_HANDLER__GIT_ANALYSE__TIMEOUT", "7m"),
            ("QUEUE_WORKER_HANDLER__extra__TYPE", "exec"),
            ("QUEUE_WORKER_HANDLER__extra__COMMAND", "[\"/bin/cat\", \"-\"]"),
            ("QUEUE_WORKER_HANDLER__extra__ENVIRONMENT", "{ A = \"b\" }"),
        ],
    )
    .expect("a configuration");
    let queues: Vec<_> = config.queues.iter().map(|q| (q.name.as_str(), q.concurrency)).collect();
    assert_eq!(queues, [("mail", 3), ("git.fetch", 4), ("third", 16)]);
    assert_eq!(config.queues[1].max_payload.bytes(), 1_024);
    let handler = |kind: &str| &config.handlers[&kind.parse().expect("a kind")];
    assert_eq!(handler("git.analyse").common.timeout, Duration::from_secs(420));
    let HandlerAction::Exec(exec) = &handler("extra").action else { panic!("not exec") };
    assert_eq!(exec.command, ["/bin/cat", "-"]);
    assert_eq!(exec.environment["A"], "b");
}

#[test]
fn systemd_tells_the_directories() {
    let text = format!("[redis]\npassword_file = \"redis\"\n{QUEUE}");
    let variables = [("STATE_DIRECTORY", "/state/a:/state/b"), ("CREDENTIALS_DIRECTORY", "/creds")];
    let config = parse_with(&text, &variables).expect("a configuration");
    assert_eq!(config.worker.state_dir, Path::new("/state/a"));
    assert_eq!(config.redis.password_file.as_deref(), Some(Path::new("/creds/redis")));
    let text = format!("[lease]\npassword_file = \"locks\"\n{QUEUE}");
    let lease = parse_with(&text, &variables).expect("a configuration").lease;
    assert_eq!(lease.password_file.as_deref(), Some(Path::new("/creds/locks")));
    let text = format!("[worker]\nstate_dir = \"/mine\"\n{QUEUE}");
    let config = parse_with(&text, &variables).expect("a configuration");
    assert_eq!(config.worker.state_dir, Path::new("/mine"));
}

const ODD: &str = r#"p#/+=@%41:?&"'\ ü$x"#;

#[test]
fn every_character_of_a_password_arrives() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("password");
    let path = file.to_str().expect("UTF-8");
    for written in [ODD.to_owned(), format!("{ODD}\n"), format!("{ODD}\r\n")] {
        std::fs::write(&file, written).expect("written");
        let variables =
            [("QUEUE_WORKER_REDIS__PASSWORD_FILE", path), ("QUEUE_WORKER_POSTGRES__PASSWORD", ODD)];
        let config = parse_with(QUEUE, &variables).expect("a configuration");
        let redis = config.redis.password().expect("readable").expect("a password");
        let postgres = config.postgres.password().expect("readable").expect("a password");
        assert_eq!((redis.expose(), postgres.expose()), (ODD, ODD));
    }
    let encoded = ODD.bytes().fold(String::new(), |text, byte| format!("{text}%{byte:02X}"));
    let text = format!("[redis]\nurl = \"redis://:{encoded}@localhost/0\"\n{QUEUE}");
    let config = parse(&text).expect("a configuration");
    let password = config.redis.password().expect("no file").expect("a password");
    assert_eq!(password.expose(), ODD);
}

#[test]
fn a_lock_node_has_its_own_credentials_or_those_of_all() {
    let text = format!(
        "[lease]\nnodes = [\"redis://u:p@a\", \"redis://b\", \"redis://c\"]\nusername = \"all\"\n{QUEUE}"
    );
    let lease = parse(&text).expect("a configuration").lease;
    let users: Vec<_> = lease.nodes.iter().filter_map(|node| lease.node_user(node)).collect();
    assert_eq!(users, ["u", "all", "all"]);
    let passwords: Vec<_> =
        lease.nodes.iter().map(|node| lease.node_password(node).expect("no file")).collect();
    assert_eq!(passwords[0].as_ref().map(queue_worker::config::Secret::expose), Some("p"));
    assert_eq!((&passwords[1], &passwords[2]), (&None, &None));
    let variables = [("QUEUE_WORKER_LEASE__PASSWORD", ODD)];
    let lease = parse_with(&text, &variables).expect("a configuration").lease;
    let passwords = lease.nodes.iter().map(|node| lease.node_password(node).expect("no file"));
    let passwords: Vec<String> =
        passwords.map(|one| one.expect("a password").expose().to_owned()).collect();
    assert_eq!(passwords, ["p", ODD, ODD]);
}

#[test]
fn a_missing_secret_is_no_configuration_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("late");
    let text = format!("[redis]\npassword_file = {file:?}\n{QUEUE}");
    let config = parse(&text).expect("a configuration");
    let error = config.redis.password().expect_err("not there yet");
    assert!(error.to_string().contains("late"), "{error}");
    std::fs::write(&file, "").expect("written");
    assert!(config.redis.password().is_err());
    std::fs::write(&file, "came\n\n").expect("written");
    let password = config.redis.password().expect("readable").expect("a password");
    assert_eq!(password.expose(), "came\n", "one newline is stripped, no more");
}

#[test]
fn a_secret_shows_nowhere() {
    let secret = format!("S{:032x}", rand::random::<u128>());
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    std::fs::write(&file, &secret).expect("written");
    let text = format!(
        "[redis]\nurl = \"redis://u:{secret}@h\"\n\
         [lease]\nnodes = [\"redis://:{secret}@a\", \"redis://b\", \"redis://c\"]\n\
         [postgres]\nurl = \"postgres://h/d?password={secret}\"\n{QUEUE}\
         [handler.x]\ntype = \"http\"\nurl = \"http://u:{secret}@h\"\nbearer_file = {file:?}\n"
    );
    let variables = [("QUEUE_WORKER_POSTGRES__PASSWORD", secret.as_str())];
    let config = parse_with(&text, &variables).expect("a configuration");
    let plan = reloadable(&config, &parse(QUEUE).expect("a configuration"));
    let HandlerAction::Http(http) = &config.handlers.values().next().expect("a handler").action
    else {
        panic!("not http")
    };
    let headers = http.secret_headers().expect("readable");
    assert_eq!(headers[0].1.expose(), format!("Bearer {secret}"));
    for shown in [format!("{config:?}"), format!("{plan:?}"), format!("{headers:?}")] {
        assert!(!shown.contains(&secret), "{shown}");
    }
    let in_errors = [
        format!("[redis]\npassword = \"{secret}\"\n"),
        format!("[lease]\nnodes = \"redis://:{secret}@a\"\n"),
        format!("[lease]\nnodes = [\"redis://a\", \"{secret}\"]\n"),
        format!("[lease]\nnodes = [\"redis://:{secret}@a\", \"redis://b\"]\n"),
        format!("[redis]\npassword = {secret}\n"),
        format!("[redis]\nurl = \"redis://:{secret}@:x\"\n"),
        format!("[redis]\nurl = \"{secret}\"\n"),
        format!("[redis]\nurl = [\"{secret}\"]\n"),
        format!("[redis]\nurl = \"{secret}://h\"\n"),
        format!("[redis]\npassword = \"{secret}\n"),
        format!("[redis]\npasswort = \"{secret}\"\n"),
        format!("[redis]\nurl = \"redis://:{secret}@h\"\npassword_file = \"/x\"\n"),
        format!(
            "[handler.x]\ntype = \"http\"\nurl = \"h://{secret}@h\"\nheaders = {{ Cookie = \"{secret}\" }}\n"
        ),
    ];
    for text in in_errors {
        let error = parse(&format!("{QUEUE}{text}")).expect_err("bad");
        assert!(!format!("{error} {error:?}").contains(&secret), "{error}");
    }
}

/// A file in which every key of the reference has a place: all types of handlers.
const FULL: &str = "[[queue]]\nname = \"NAME\"\n\
    [handler.exec]\ntype = \"exec\"\ncommand = [\"/bin/true\"]\n\
    [handler.sql]\ntype = \"sql\"\nstatement = \"SELECT 1\"\n\
    [handler.http]\ntype = \"http\"\nurl = \"http://h/\"\n\
    [handler.git-analysis]\ntype = \"git-analysis\"\n";

/// Another value than the default, as a variable has it.
fn other_value(key: &str, kind: &str) -> &'static str {
    match (key, kind) {
        ("lease.ttl", _) => "5001ms",
        ("retention.succeeded" | "retention.failed", _) => "40d",
        ("retention.dead_letters", _) => "20d",
        ("lease.min_idle", _) => "9s",
        ("lease.heartbeat", _) => "1s",
        ("redis.call_timeout", _) => "400ms",
        ("lease.node_timeout", _) => "40ms",
        ("drain.stop_timeout", _) => "80s",
        ("drain.margin", _) => "4s",
        ("postgres.url", _) => "postgres://h/d",
        ("redis.url", _) => "redis://h/1",
        ("log.level", _) => "debug",
        ("handler.KIND.memory_max" | "handler.KIND.fetch_memory_max", _) => "96MiB",
        ("handler.KIND.mirrors_max", _) => "96GiB",
        ("handler.KIND.protocols", _) => "[\"http\"]",
        ("handler.KIND.hosts", _) => "[\"example.org\"]",
        ("handler.KIND.trusted_paths", _) => "[\"/some/where\"]",
        (_, "a duration") => "800ms",
        (_, "a size") => "1MiB",
        (_, "a whole number") => "7",
        (_, "a URL") => "https://h/x",
        (_, "a list of URLs") => r#"["redis://a", "redis://b", "redis://c"]"#,
        (_, "a path" | "a string" | "a secret (environment only)") => "/some/where",
        (_, "a queue name") => "other",
        (_, "a list of strings") => "[\"/bin/false\", \"x\"]",
        (_, "a table of strings") => "{ X-A = \"b\" }",
        (_, "a log format") => "json",
        (_, "an address with a port") => "127.0.0.1:9464",
        (_, "true or false") => "true",
        (key, kind) => panic!("no value for {key}, {kind}"),
    }
}

#[test]
fn the_environment_overrides_every_key() {
    let keys = reference_keys();
    assert!(keys.len() > 50, "{}", keys.len());
    // What the rules tie together has some room in the base.
    let base = [
        ("QUEUE_WORKER_LEASE__MIN_IDLE", "8s"),
        ("QUEUE_WORKER_HANDLER__sql__BACKOFF_BASE", "500ms"),
    ];
    let old = parse_with(FULL, &base).expect("a configuration");
    for key in keys {
        let handler = key.handler_type.unwrap_or("sql");
        let variable = key.variable.replace("__KIND__", &format!("__{handler}__"));
        let full_key = key.key.replace("KIND", handler);
        let mut variables = BTreeMap::from(base);
        variables.insert(&variable, other_value(&key.key, key.kind));
        let variables: Vec<_> = variables.into_iter().collect();
        let new = parse_with(FULL, &variables).unwrap_or_else(|error| panic!("{error}"));
        let plan = reloadable(&old, &new);
        mixes(&old, &new, &plan);
        let changed: Vec<String> = plan.apply.into_iter().chain(plan.needs_restart).collect();
        if key.key == "queue.NAME.name" {
            assert_eq!(changed, ["queue.NAME", "queue.other"]);
        } else {
            assert_eq!(changed, [full_key], "{variable}");
            assert_ne!(key.default.as_deref(), Some(other_value(&key.key, key.kind)));
        }
    }
}

#[test]
fn a_reload_knows_what_it_can_apply() {
    let old = parse(FULL).expect("a configuration");
    assert!(reloadable(&old, &old.clone()).is_empty());
    let new = parse_with(
        FULL,
        &[
            ("QUEUE_WORKER_LOG__LEVEL", "debug"),
            ("QUEUE_WORKER_LOG__FORMAT", "json"),
            ("QUEUE_WORKER_QUEUE__0__CONCURRENCY", "1"),
            ("QUEUE_WORKER_QUEUE__1__NAME", "new"),
            ("QUEUE_WORKER_HANDLER__exec__COMMAND", "[\"/bin/false\"]"),
            ("QUEUE_WORKER_HANDLER__sql__TYPE", "exec"),
            ("QUEUE_WORKER_DRAIN__TIMEOUT", "9s"),
            ("QUEUE_WORKER_REDIS__PASSWORD", "x"),
        ],
    );
    // A changed type brings other keys along.
    let new = new.expect_err("statement is no key of exec");
    assert_eq!(new.problems.len(), 2, "{new}");
    let new = parse_with(
        &FULL.replace(
            "type = \"sql\"\nstatement = \"SELECT 1\"",
            "type = \"exec\"\ncommand = [\"/x\"]",
        ),
        &[
            ("QUEUE_WORKER_LOG__LEVEL", "debug"),
            ("QUEUE_WORKER_LOG__FORMAT", "json"),
            ("QUEUE_WORKER_QUEUE__0__CONCURRENCY", "1"),
            ("QUEUE_WORKER_QUEUE__1__NAME", "new"),
            ("QUEUE_WORKER_HANDLER__exec__COMMAND", "[\"/bin/false\"]"),
            ("QUEUE_WORKER_DRAIN__TIMEOUT", "9s"),
            ("QUEUE_WORKER_REDIS__PASSWORD", "x"),
        ],
    )
    .expect("a configuration");
    let plan = reloadable(&old, &new);
    assert_eq!(
        plan.apply,
        [
            "drain.timeout",
            "queue.NAME.concurrency",
            "handler.exec.command",
            "handler.sql.type",
            "log.level"
        ]
    );
    assert_eq!(plan.needs_restart, ["redis.password", "queue.new", "log.format"]);
    mixes(&old, &new, &plan);
}

/// What is in force after a reload has all that was applied, and lacks all that was not.
fn mixes(old: &Config, new: &Config, plan: &ReloadPlan) {
    let mixed = in_force(old, new.clone());
    let (applied, left) = (reloadable(old, &mixed), reloadable(&mixed, new));
    assert_eq!((&applied.apply, &applied.needs_restart), (&plan.apply, &vec![]));
    assert_eq!((&left.apply, &left.needs_restart), (&vec![], &plan.needs_restart));
}

#[test]
fn a_mixture_that_breaks_a_rule_is_refused() {
    let with = |timeout: &str, kept: &str| {
        let variables = [
            ("QUEUE_WORKER_HANDLER__sql__TIMEOUT", timeout),
            ("QUEUE_WORKER_RETENTION__SUCCEEDED", kept),
            ("QUEUE_WORKER_RETENTION__FAILED", kept),
        ];
        parse_with(FULL, &variables).expect("a configuration")
    };
    let (old, new) = (with("1h", "30d"), with("60d", "90d"));
    let check = |config: &Config| config.check(Path::new("qw.toml"), &Environment::default());
    assert_eq!((check(&old), check(&new)), (Ok(()), Ok(())));
    let error = check(&in_force(&old, new)).expect_err("kept too short").to_string();
    assert!(error.starts_with("qw.toml: retention.succeeded: rows are kept"), "{error}");
}

#[test]
fn the_default_file_is_the_default() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/queue-worker.toml");
    let loaded = Config::load(&path, &Environment::default());
    let config = parse(&default_toml()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(loaded.as_ref(), Ok(&config));
    assert_eq!(config, Config::with_queue("default".parse().expect("a name")));
}

#[test]
fn the_examples_of_the_default_file_load_too() {
    let text: String = default_toml()
        .lines()
        .filter(|line| !line.starts_with("# # "))
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.contains(" = ") || rest.starts_with('[') => format!("{rest}\n"),
            Some(_) => String::new(),
            None => format!("{line}\n"),
        })
        .filter(|line| !line.contains("password"))
        .collect();
    let config = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let types: Vec<_> = config.handlers.values().map(|h| h.action.type_name()).collect();
    assert_eq!(types, ["sql", "git-analysis", "http", "exec"]);
}

#[test]
fn the_reference_names_every_key_of_the_file() {
    let text = default_toml();
    for key in reference_keys() {
        let name = key.key.rsplit('.').next().unwrap_or_default();
        let shown = text.contains(&format!("{name} = ")) || text.contains(&key.variable);
        assert!(shown, "{}", key.key);
        assert!(reference_md().contains(&format!("| `{name}` |")), "{}", key.key);
        assert!(!key.docs.is_empty(), "{} says nothing", key.key);
    }
}

#[test]
fn generated_files_are_current() {
    const COMMAND: &str = "UPDATE_GENERATED=1 cargo test --test config generated";
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, text) in
        [("config/queue-worker.toml", default_toml()), ("docs/configuration.md", reference_md())]
    {
        let path = root.join(name);
        if std::env::var_os("UPDATE_GENERATED").is_some() {
            std::fs::write(&path, &text).expect("written");
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == text, "{name} is out of date; run: {COMMAND}");
    }
}

#[test]
fn the_pages_are_for_this_machine_unless_told_otherwise() {
    for listen in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        let text = format!("{QUEUE}[web]\nlisten = \"{listen}\"\n");
        parse(&text).unwrap_or_else(|error| panic!("{error}"));
    }
    for listen in ["0.0.0.0:1", "[::]:1", "192.168.1.1:1", "[::ffff:10.0.0.1]:1"] {
        let text = format!("{QUEUE}[web]\nlisten = \"{listen}\"\n");
        parse(&text).expect_err("reachable from outside");
        let config = parse(&format!("{text}allow_remote = true\n"));
        config.unwrap_or_else(|error| panic!("{error}"));
    }
}

const COMMITS: &str = "[handler.commits]\ntype = \"git-analysis\"\n";

#[test]
fn a_handler_of_commits_has_time_to_clone() {
    let timeout = |text: &str| {
        let config = parse(&format!("{QUEUE}{COMMITS}{text}")).expect("a configuration");
        config.handlers.values().next().expect("a handler").common.timeout
    };
    assert_eq!(timeout(""), Duration::from_secs(30 * 60));
    assert_eq!(timeout("timeout = \"60s\"\n"), Duration::from_secs(60));
    let text = format!("{QUEUE}{COMMITS}credential_files = {{ \"example.org\" = \"git\" }}\n");
    let config = parse_with(&text, &[("CREDENTIALS_DIRECTORY", "/creds")]).expect("good");
    let HandlerAction::Git(git) = &config.handlers.values().next().expect("a handler").action
    else {
        panic!("not git")
    };
    assert_eq!(git.credential_files["example.org"], "/creds/git");
}

#[test]
fn mistakes_about_commits_are_named() {
    for (line, key) in [
        ("batch = 0", "batch"),
        ("batch = 257", "batch"),
        ("protocols = []", "protocols"),
        ("protocols = [\"ext\"]", "protocols"),
        ("hosts = []", "hosts"),
        ("hosts = [\"https://example.org\"]", "hosts"),
        ("credential_files = { \"a/b\" = \"/x\" }", "credential_files"),
        ("trusted_paths = [\"x\"]", "trusted_paths"),
        ("mirrors = \"x\"", "mirrors"),
        ("program = \"no-such-git\"", "program"),
        ("program = \"bin/git\"", "program"),
        ("commit_timeout = \"2h\"", "commit_timeout"),
        ("memory_max = \"1MiB\"", "memory_max"),
        ("repository_max = \"1B\"", "repository_max"),
        ("mirrors_max = \"2GiB\"", "mirrors_max"),
        ("files_max = 0", "files_max"),
        ("ssh_command = \" \"", "ssh_command"),
        ("environment = { \"a=b\" = \"c\" }", "environment"),
        ("depth = 1", "depth"),
    ] {
        let error = parse(&format!("{QUEUE}{COMMITS}{line}\n")).expect_err(line).to_string();
        assert!(error.contains(&format!("handler.commits.{key}")), "{line}: {error}");
    }
}
