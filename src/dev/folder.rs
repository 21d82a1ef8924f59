//! The folder of one `dev` run: kubeconfigs and log, gone when it ends.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tempfile::TempDir;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::Error;

const LOG: &str = "operator.log";
const KUBECONFIG: &str = "kubeconfig";
const OPERATOR_KUBECONFIG: &str = "operator.kubeconfig";
/// Lines of the log that an error shows.
const TAIL: usize = 20;

/// Where the files of a run lie; dropping it removes them.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// None: the user's own folder, which stays.
    _temporary: Option<TempDir>,
}

impl Folder {
    /// Makes the folder (mode 0700), or a temporary one.
    pub(super) fn create(dir: Option<PathBuf>) -> Result<Self, Error> {
        match dir {
            Some(path) => {
                DirBuilder::new()
                    .recursive(true)
                    .mode(0o700)
                    .create(&path)
                    .map_err(|source| Error::File {
                        path: path.clone(),
                        source,
                    })?;
                Ok(Self {
                    path,
                    _temporary: None,
                })
            }
            None => {
                let temporary = tempfile::Builder::new()
                    .prefix("proxy-operator-")
                    .tempdir()
                    .map_err(|source| Error::File {
                        path: std::env::temp_dir(),
                        source,
                    })?;
                Ok(Self {
                    path: temporary.path().to_owned(),
                    _temporary: Some(temporary),
                })
            }
        }
    }

    /// The administrator's kubeconfig.
    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.path.join(KUBECONFIG)
    }

    /// The operator's kubeconfig.
    pub(super) fn operator_kubeconfig(&self) -> PathBuf {
        self.path.join(OPERATOR_KUBECONFIG)
    }

    /// The log of operator and cluster.
    pub(super) fn log(&self) -> PathBuf {
        self.path.join(LOG)
    }

    /// Writes the operator's kubeconfig, readable for the user alone.
    pub(super) fn write_operator_kubeconfig(&self, text: &str) -> Result<(), Error> {
        let path = self.operator_kubeconfig();
        private(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|source| Error::File { path, source })
    }

    /// Sends the log of this process to a file of the folder from now on.
    pub(super) fn log_to_file(&self, filter: EnvFilter) -> Result<(), Error> {
        let path = self.log();
        let file = private(&path).map_err(|source| Error::File { path, source })?;
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(false)
            .with_writer(Mutex::new(file))
            .finish()
            .try_init()
            .map_err(Error::Log)
    }

    /// The end of the log, for a run that failed.
    pub(super) fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(TAIL)..];
        format!("the last lines of the log:\n{}", tail.join("\n"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for file in [self.kubeconfig(), self.operator_kubeconfig(), self.log()] {
            // What is not there need not go.
            let _gone = fs::remove_file(file);
        }
    }
}

/// A new file for its owner alone. What a run that was killed has left is replaced, not written
/// to: it may have another mode, or be a link to somewhere else.
fn private(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn files_are_private_and_go_with_the_folder_that_a_user_gave() {
        let base = tempfile::tempdir().expect("a folder");
        let dir = base.path().join("a/b");
        let folder = Folder::create(Some(dir.clone())).expect("the folder is made");
        folder.write_operator_kubeconfig("secret").expect("written");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(
            (mode(&dir), mode(&folder.operator_kubeconfig())),
            (0o700, 0o600)
        );
        drop(folder);
        assert_eq!(fs::read_dir(&dir).expect("it stays").count(), 0);
    }

    #[test]
    fn a_file_that_was_left_open_to_all_is_replaced_by_a_private_one() {
        let base = tempfile::tempdir().expect("a folder");
        let folder = Folder::create(Some(base.path().to_owned())).expect("it is there");
        let path = folder.operator_kubeconfig();
        fs::write(&path, "old").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("opened");
        folder.write_operator_kubeconfig("secret").expect("written");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&path).expect("readable"), "secret");
    }

    #[test]
    fn a_temporary_folder_goes_wholly() {
        let folder = Folder::create(None).expect("the folder is made");
        let path = folder.path.clone();
        assert!(path.is_dir());
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let base = tempfile::tempdir().expect("a folder");
        let file = base.path().join("file");
        fs::write(&file, "").expect("written");
        let error = Folder::create(Some(file.join("dir"))).expect_err("a file is in the way");
        assert!(error.to_string().contains("file/dir"), "{error}");
    }
}
