//! A connection of HTTP/2 whose server has gone without a word: a machine that lost its power, a
//! firewall that forgot. It is shared by all tasks of a kind, and TCP notices nothing for minutes.
//!
//! The server speaks just enough of RFC 9113, on a thread of its own, since the test pauses the
//! clock. `localhost.pem` is a certificate of `localhost` that signed itself.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use queue_worker::domain::FailureClass;
use queue_worker::handler::ExternalHandler;
use queue_worker::handler::http::{HttpHandler, HttpOptions};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use url::Url;

use crate::{run, within};

const CERTIFICATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/http/localhost.pem");
const KEY: &[u8] = include_bytes!("localhost.key");
/// What a client begins with (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Types of frames, and the flag that ends a stream.
const DATA: u8 = 0;
const END_STREAM: u8 = 1;
/// An empty SETTINGS frame: everything at its default.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
/// As the client looks at it, far longer than a connection may be silent.
const PATIENCE: Duration = Duration::from_secs(60);

type Stream = StreamOwned<ServerConnection, std::net::TcpStream>;

fn tls() -> Arc<ServerConfig> {
    let chain = vec![CertificateDer::from_pem_file(CERTIFICATE).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(KEY).unwrap();
    let mut config =
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

/// Takes a connection and answers its first request with 204.
fn answer(listener: &TcpListener, config: &Arc<ServerConfig>) -> Stream {
    let (socket, _) = listener.accept().unwrap();
    let mut stream = StreamOwned::new(ServerConnection::new(Arc::clone(config)).unwrap(), socket);
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface).unwrap();
    assert_eq!(preface, PREFACE);
    stream.write_all(&SETTINGS).unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        stream.read_exact(&mut vec![0; length]).unwrap();
        if (head[3], head[4]) == (DATA, END_STREAM) {
            // HEADERS that end themselves and the stream: `:status: 204`, number 9 of HPACK's table.
            let mut headers = [0, 0, 1, 1, 0x4 | END_STREAM, 0, 0, 0, 0, 0x89];
            headers[5..9].copy_from_slice(&head[5..9]);
            stream.write_all(&headers).unwrap();
            return stream;
        }
    }
}

#[tokio::test]
async fn a_dead_connection_is_noticed_and_replaced() {
    if std::env::var_os("SSL_CERT_FILE").is_none_or(|file| file != CERTIFICATE) {
        return in_a_process_that_trusts_the_certificate();
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
    let server = std::thread::spawn(move || {
        let config = tls();
        // Open and silent from its first answer on, until the test ends.
        let dead = answer(&listener, &config);
        (dead, answer(&listener, &config))
    });
    let handler = HttpHandler::new(HttpOptions::new(Url::parse(&url).unwrap())).unwrap();
    assert_eq!(within(handler.run(run())).await.unwrap(), None);

    tokio::time::pause();
    let lost = tokio::time::timeout(PATIENCE, handler.run(run())).await;
    tokio::time::resume();
    let failure = lost.expect("the silence is noticed").unwrap_err();
    assert_eq!(failure.class, FailureClass::Retry { after: None }, "{failure:?}");
    assert_eq!(within(handler.run(run())).await.unwrap(), None, "on a new connection");
    server.join().unwrap();
}

/// The handler trusts what the environment says when it is made.
fn in_a_process_that_trusts_the_certificate() {
    let test = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "dead_connection::a_dead_connection_is_noticed_and_replaced"])
        .env("SSL_CERT_FILE", CERTIFICATE)
        .env_remove("SSL_CERT_DIR")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&test.stdout);
    assert!(test.status.success() && said.contains("1 passed"), "{said}");
}
