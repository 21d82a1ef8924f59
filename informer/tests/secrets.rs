//! The rule on secrets: a process that runs only an informer on metadata never has their data.
//!
//! One test keeps the server and plants values; it starts this program again for the informer, in
//! a process of its own whose whole memory is searched. What is searched for is handed over under
//! a mask, so that the search itself does not bring it there.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper that fails fails its test; the process that is searched reports by its output"
)]

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use devcluster::DevCluster;
use informer::client::{self, ClientOptions, ConfigSource};
use informer::{Event, Informer, InformerOptions, MetadataOnly};
use k8s_openapi::api::core::v1::Secret;
use kube_client::api::{Api, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use rand::Rng as _;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const CHILD: &str = "the_process_that_is_searched";
const KUBECONFIG: &str = "INFORMER_SECRETS_KUBECONFIG";
const MASKED: &str = "INFORMER_SECRETS_MASKED";
const MASK: u8 = 0x5a;
const PATIENCE: Duration = Duration::from_secs(60);

/// Texts under the mask, as numbers.
fn masked(texts: &[&str]) -> String {
    let one = |text: &&str| {
        let bytes = text.bytes().map(|byte| (byte ^ MASK).to_string());
        bytes.collect::<Vec<_>>().join(",")
    };
    texts.iter().map(one).collect::<Vec<_>>().join(";")
}

/// The masked texts again, still under the mask.
fn under_mask(numbers: &str) -> Vec<Vec<u8>> {
    let bytes = |text: &str| text.split(',').map(|byte| byte.parse().unwrap()).collect();
    numbers.split(';').map(bytes).collect()
}

fn contains(memory: &[u8], masked: &[u8]) -> bool {
    let same = |window: &[u8]| {
        window
            .iter()
            .zip(masked)
            .all(|(byte, with)| byte ^ MASK == *with)
    };
    let first = masked[0] ^ MASK;
    let mut rest = memory;
    while let Some(at) = rest.iter().position(|byte| *byte == first) {
        if rest.len() - at < masked.len() {
            return false;
        }
        if same(&rest[at..at + masked.len()]) {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

/// Which of the masked texts stand in the memory of this process, and how much was searched.
fn found_in_memory(texts: &[Vec<u8>]) -> (Vec<bool>, usize) {
    const CHUNK: usize = 1 << 20;
    let longest = texts.iter().map(Vec::len).max().unwrap();
    let mut memory = File::open("/proc/self/mem").unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut found = vec![false; texts.len()];
    let mut searched = 0;
    let mut chunk = vec![0; CHUNK + longest];
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next().unwrap(), words.next().unwrap());
        if !rights.starts_with('r') || line.contains("[vvar") || line.contains("[vsyscall]") {
            continue;
        }
        let (start, end) = range.split_once('-').unwrap();
        let start = u64::from_str_radix(start, 16).unwrap();
        let end = u64::from_str_radix(end, 16).unwrap();
        let mut at = start;
        while at < end {
            let length = usize::try_from(end - at).unwrap().min(chunk.len());
            memory.seek(SeekFrom::Start(at)).unwrap();
            // A mapping may have been given back since the list of them was read.
            let Ok(()) = memory.read_exact(&mut chunk[..length]) else {
                break;
            };
            for (found, text) in found.iter_mut().zip(texts) {
                *found |= contains(&chunk[..length], text);
            }
            searched += length;
            at += CHUNK as u64;
        }
    }
    (found, searched)
}

/// What was logged.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "not in time: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the test below, in a process of its own"]
async fn the_process_that_is_searched() {
    let Some(kubeconfig) = std::env::var_os(KUBECONFIG) else {
        return;
    };
    let texts = under_mask(&std::env::var(MASKED).unwrap());
    let written = Written::default();
    let writer = written.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .init();
    let source = ConfigSource {
        kubeconfig: Some(kubeconfig.into()),
        context: None,
    };
    let config = client::load_config(&source).await.unwrap();
    let client = client::connect(config, ClientOptions::default()).unwrap();
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let mut tasks = JoinSet::new();
    let mut informers = Vec::new();
    // By a streamed list, and by list and watch.
    for watch_list in [true, false] {
        let failures = Arc::clone(&told);
        let options = InformerOptions {
            watch_list,
            error_handler: Some(Arc::new(move |error| {
                failures.lock().push(format!("{error} {error:?}"));
            })),
            ..InformerOptions::default()
        };
        let informer: Informer<MetadataOnly<Secret>> =
            Informer::new(client.clone(), options).unwrap();
        let texts = Arc::clone(&told);
        informer
            .add_handler("texts", move |event: &Event<MetadataOnly<Secret>>| {
                texts.lock().push(format!("{} {event:?}", event.key()));
            })
            .unwrap();
        let running = informer.clone();
        tasks.spawn(async move { running.run(CancellationToken::new()).await });
        informer.synced().await;
        informers.push(informer);
    }
    println!("ready");
    for informer in &informers {
        let lister = informer.lister();
        let key = informer::ObjectKey::namespaced("default", "second");
        eventually("the label of the second secret", || {
            let second = lister.get(&key);
            second.is_some_and(|secret| secret.metadata().labels.is_some())
        })
        .await;
    }
    let [data, encoded, applied, control] = &texts[..] else {
        panic!("four texts");
    };
    let mut dump = format!("{:?}", told.lock());
    for informer in &informers {
        dump.push_str(&format!(
            "{:?} {:?} {:?} {:?} {informer:?}",
            informer.lister().list(),
            informer.status(),
            informer.stats(),
            informer.malformed(),
        ));
    }
    let logged = written.0.lock().clone();
    assert!(
        logged.len() > 1000,
        "a log that says nothing proves nothing"
    );
    for text in [data, encoded, applied] {
        assert!(!contains(dump.as_bytes(), text), "planted text in a dump");
        assert!(!contains(&logged, text), "planted text in the log");
    }
    assert!(contains(dump.as_bytes(), control));
    let (found, searched) = found_in_memory(&[data.clone(), encoded.clone(), control.clone()]);
    assert!(searched > 1 << 20, "{searched} bytes");
    assert_eq!(
        found,
        [false, false, true],
        "data, its encoding, a label that must be there"
    );
    println!("searched {searched} bytes");
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i102_secret_data_are_nowhere_in_a_process_that_informs_of_metadata() {
    let mut dice = rand::rng();
    let mut random = || format!("{:032x}", dice.random::<u128>());
    let (data, applied, control) = (random(), random(), random());
    let encoded = {
        let secret = k8s_openapi::ByteString(data.clone().into_bytes());
        let quoted = serde_json::to_string(&secret).unwrap();
        quoted.trim_matches(['"', '=']).to_owned()
    };
    let cluster = DevCluster::builder().start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    cluster.write_kubeconfig(&kubeconfig).unwrap();
    let api: Api<Secret> = Api::namespaced(cluster.client(), "default");
    let secret = |name: &str| -> Secret {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration":
                    format!("{{\"stringData\":{{\"password\":\"{applied}\"}}}}"),
                "control": control,
            }},
            "stringData": {"password": data}
        }))
        .unwrap()
    };
    let stored = api
        .create(&PostParams::default(), &secret("first"))
        .await
        .unwrap();
    let whole = serde_json::to_string(&stored).unwrap();
    assert!(
        whole.contains(&encoded) && whole.contains(&applied),
        "planted both ways"
    );
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([CHILD, "--exact", "--ignored", "--nocapture"])
        .env(KUBECONFIG, &kubeconfig)
        .env(MASKED, masked(&[&data, &encoded, &applied, &control]))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen = Vec::new();
    let outcome = tokio::time::timeout(2 * PATIENCE, async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains("ready") {
                api.create(&PostParams::default(), &secret("second"))
                    .await
                    .unwrap();
                let change = serde_json::json!({
                    "stringData": {"more": data}, "metadata": {"labels": {"l": "v"}}
                });
                api.patch("second", &PatchParams::default(), &Patch::Merge(change))
                    .await
                    .unwrap();
            }
            seen.push(line);
        }
        child.wait().await.unwrap()
    })
    .await
    .unwrap();
    let text = seen.join("\n");
    assert!(outcome.success(), "{text}");
    assert!(
        text.contains("searched ") && text.contains("1 passed"),
        "{text}"
    );
}
