//! The lock nodes: whether they are there, and whether they are several servers indeed.

use super::finding::Findings;
use super::redis::{Facts, ask, role, version};
use crate::config::Config;
use crate::protocol::quorum::majority;
use crate::supervisor::lock_node;

/// A node's address, and what it says of itself or why it does not.
type Answer = (String, Result<Facts, String>);

/// Looks at the nodes of the configuration, all at once.
pub(super) async fn look(config: &Config) -> Vec<Findings> {
    let lease = &config.lease;
    let answers = futures_util::future::join_all(lease.nodes.iter().map(|node| async {
        match lock_node(lease, node) {
            Ok(target) => {
                let answer = ask(&target).await.map(|(facts, _)| facts);
                (target.address().to_owned(), answer)
            }
            Err(error) => (node.without_password(), Err(error.to_string())),
        }
    }));
    judge(&answers.await)
}

fn judge(answers: &[Answer]) -> Vec<Findings> {
    if answers.is_empty() {
        return Vec::new();
    }
    let mut parts: Vec<Findings> = answers.iter().map(node).collect();
    let mut together = Findings::about("lease.nodes");
    quorum(&mut together, answers);
    independence(&mut together, answers);
    parts.push(together);
    parts
}

fn node((address, answer): &Answer) -> Findings {
    const CHECK: &str = "locks.reach";
    let mut findings = Findings::about(format!("lock node {address}"));
    match answer {
        Ok(facts) => {
            findings.ok(CHECK, "answers");
            version(&mut findings, facts);
            role(&mut findings, facts);
        }
        Err(error) => findings.warning(
            CHECK,
            error.clone(),
            "the others go on without it; one more that is away may be one too many",
            "start it, or mend lease.nodes",
        ),
    }
    findings
}

fn quorum(findings: &mut Findings, answers: &[Answer]) {
    const CHECK: &str = "locks.quorum";
    let (all, needed) = (answers.len(), majority(answers.len()));
    let there = answers.iter().filter(|(_, answer)| answer.is_ok()).count();
    let found = format!("{there} of {all} answer, {needed} must");
    if there >= needed {
        findings.ok(CHECK, found);
    } else {
        findings.error(
            CHECK,
            found,
            "without a majority no lock can be taken, and no task is pulled",
            "start the nodes that are away",
        );
    }
}

/// Two names of one server: its run has one id.
fn independence(findings: &mut Findings, answers: &[Answer]) {
    const CHECK: &str = "locks.independence";
    let known: Vec<(&str, &str)> = answers
        .iter()
        .filter_map(|(address, answer)| {
            Some((address.as_str(), answer.as_ref().ok()?.info("run_id")?))
        })
        .collect();
    let twins = known.iter().enumerate().find_map(|(at, (address, id))| {
        let other = known[..at].iter().find(|(_, other)| other == id)?;
        Some((other.0, *address))
    });
    match twins {
        Some((one, other)) => findings.error(
            CHECK,
            format!("{one} and {other} are the same server"),
            "it votes twice, so a minority of servers can grant a lock that others hold",
            "name each server once in lease.nodes",
        ),
        None => findings.ok(CHECK, format!("{} different servers", known.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    fn answers(ids: &[Option<&str>]) -> Vec<Answer> {
        let answer = |(at, id): (usize, Option<&str>)| {
            let answer = match id {
                Some(id) => Ok(Facts::of_info(&[
                    ("run_id", id),
                    ("redis_version", "7.2.1"),
                    ("role", "master"),
                ])),
                None => Err("connection refused".to_owned()),
            };
            (format!("n{at}:6379"), answer)
        };
        ids.iter().copied().enumerate().map(answer).collect()
    }

    fn trouble(ids: &[Option<&str>]) -> Vec<(&'static str, Level)> {
        judge(&answers(ids)).iter().flat_map(Findings::trouble).collect()
    }

    #[test]
    fn independent_nodes_are_well_and_none_are_nothing() {
        assert_eq!(trouble(&[Some("a"), Some("b"), Some("c")]), []);
        assert!(judge(&[]).is_empty());
    }

    #[test]
    fn a_server_with_two_names_is_found() {
        let expected = [("locks.independence", Level::Error)];
        assert_eq!(trouble(&[Some("a"), Some("b"), Some("a")]), expected);
    }

    #[test]
    fn one_may_be_away_and_two_of_three_may_not() {
        let away = ("locks.reach", Level::Warning);
        assert_eq!(trouble(&[Some("a"), None, Some("c")]), [away]);
        assert_eq!(trouble(&[Some("a"), None, None]), [away, away, ("locks.quorum", Level::Error)]);
    }
}
