//! Backups: the rows of one moment and the components that they name, in a directory or in an S3-compatible store.
//!
//! ```text
//! backups/NAME/rows             as a snapshot has them
//! backups/NAME/manifest.json    last: without it there is no backup of that name
//! components/DIGEST.wasm        shared by all of them
//! ```

use std::{
    io::{self, Read},
    path::{Path as FilePath, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, future::BoxFuture};
use object_store::{
    ObjectStore, ObjectStoreExt, PutPayload, aws::AmazonS3Builder, buffered::BufWriter, local::LocalFileSystem,
    path::Path,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tickhost_ledger::{Contents, Digest, Stamp, State};
use tokio::io::AsyncWriteExt;
use uuid::Uuid;

use crate::{
    db::{Db, OpenError},
    machine::{self, Machine, read_rows},
    replica::{Replica, Setup},
};

/// What this version writes. One that reads another refuses it.
const FORMAT: u32 = 1;
/// A component that no backup names is removed after this long: somebody may be about to name it.
const UNNAMED_FOR: Duration = Duration::from_hours(24);

/// Backups cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The place is none, or cannot be used.
    #[error("backups in `{place}`: {why}")]
    Place {
        /// Where.
        place: String,
        /// Why.
        why: String,
    },
    /// There is no such backup.
    #[error("there is no backup `{name}` in `{place}`; `tickhost backup list` has those that are there")]
    Missing {
        /// Where.
        place: String,
        /// Which.
        name: String,
    },
    /// It is not what it should be.
    #[error("backup `{name}` in `{place}` is damaged: {why}; use another one")]
    Damaged {
        /// Where.
        place: String,
        /// Which.
        name: String,
        /// Why.
        why: String,
    },
    /// A file on this machine.
    #[error("{what} `{path}`: {source}")]
    File {
        /// What was done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A component cannot be had.
    #[error("component {digest}: {why}")]
    Component {
        /// Which.
        digest: Digest,
        /// Why.
        why: String,
    },
}

/// What a backup says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// What it was written with.
    pub format: u32,
    /// Its name: the ledger's time, then the index of the last entry. Later ones sort after earlier ones.
    pub name: String,
    /// The cluster.
    pub cluster: Uuid,
    /// The life of the cluster between restores.
    pub epoch: u64,
    /// The ledger's time.
    pub taken_at: Stamp,
    /// The last entry in it.
    pub index: u64,
    /// The term of that entry.
    pub term: u64,
    /// The hash of the state, in hexadecimal: any node's at that index.
    pub hash: String,
    /// How many jobs.
    pub jobs: u64,
    /// The rows.
    pub rows: Part,
    /// The components.
    pub components: Vec<Digest>,
    /// The version of the program that wrote it.
    pub version: String,
}

/// A part of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its size.
    pub bytes: u64,
    /// Of its bytes.
    pub digest: Digest,
}

/// Gives the bytes of a component, from wherever they can be had.
pub type ComponentBytes<'a> = &'a (dyn Fn(Digest) -> BoxFuture<'static, Result<Bytes, String>> + Send + Sync);

/// Where backups lie.
#[derive(Debug, Clone)]
pub struct Place {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    shown: String,
    /// What most likely is the matter where the store refuses.
    hint: &'static str,
}

/// Without a key the library asks the machine that it runs on for its role.
const NO_KEY: &str =
    "; AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set, so the machine's own role was asked for";

impl Place {
    /// A directory, or `s3://BUCKET/PREFIX`. For the latter, credentials and whatever is not given
    /// here come from the environment, under the names that S3 tools read (`AWS_ACCESS_KEY_ID`, …).
    ///
    /// # Errors
    /// A place that is none, and a directory that cannot be used.
    pub fn open(to: &str, endpoint: Option<&str>, region: Option<&str>) -> Result<Self, BackupError> {
        let refuse = |why: String| BackupError::Place { place: to.to_owned(), why };
        let (store, prefix): (Arc<dyn ObjectStore>, &str) = match to.split_once("://") {
            Some(("s3", rest)) => {
                // A second installation is no fault: the first one is the same provider.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
                if let Some(endpoint) = endpoint {
                    builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
                }
                if let Some(region) = region {
                    builder = builder.with_region(region);
                }
                (Arc::new(builder.build().map_err(|e| refuse(e.to_string()))?), prefix)
            }
            Some((other, _)) => {
                return Err(refuse(format!("`{other}://` is not known; write a directory, or `s3://BUCKET/PREFIX`")));
            }
            None => {
                let local = LocalFileSystem::new_with_prefix(to).map_err(|e| refuse(e.to_string()))?;
                (Arc::new(local.with_fsync(true)), "")
            }
        };
        let has_key = !to.contains("://") || std::env::var_os("AWS_ACCESS_KEY_ID").is_some();
        let hint = if has_key { "" } else { NO_KEY };
        Ok(Self { store, prefix: Path::from(prefix), shown: to.to_owned(), hint })
    }

    fn failed<E: std::fmt::Display>(&self) -> impl Fn(E) -> BackupError + '_ {
        |error| BackupError::Place { place: self.shown.clone(), why: format!("{error}{}", self.hint) }
    }

    fn backups(&self) -> Path {
        self.prefix.clone().join("backups")
    }

    fn part(&self, name: &str, part: &str) -> Path {
        self.backups().join(name).join(part)
    }

    fn components(&self) -> Path {
        self.prefix.clone().join("components")
    }

    fn component(&self, digest: &Digest) -> Path {
        self.components().join(format!("{}.wasm", digest.hex()))
    }

    /// The backups that are there, oldest first. One that is damaged is said and left out: the others are good.
    ///
    /// # Errors
    /// A place that cannot be read.
    pub async fn list(&self) -> Result<Vec<Manifest>, BackupError> {
        let listed = self.store.list_with_delimiter(Some(&self.backups())).await.map_err(self.failed())?;
        let mut manifests = Vec::new();
        for dir in listed.common_prefixes {
            let Some(name) = dir.filename() else { continue };
            match self.manifest(name).await {
                Ok(manifest) => manifests.push(manifest),
                // It was not finished, or is just being written or removed.
                Err(BackupError::Missing { .. }) => {}
                Err(error @ BackupError::Damaged { .. }) => tracing::warn!(%error, "look at a backup"),
                Err(error) => return Err(error),
            }
        }
        manifests.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(manifests)
    }

    /// What a backup says of itself.
    ///
    /// # Errors
    /// Where there is none of that name, or it is damaged.
    pub async fn manifest(&self, name: &str) -> Result<Manifest, BackupError> {
        let missing = || BackupError::Missing { place: self.shown.clone(), name: name.to_owned() };
        let bytes = match self.store.get(&self.part(name, "manifest.json")).await {
            Ok(found) => found.bytes().await.map_err(self.failed())?,
            Err(object_store::Error::NotFound { .. }) => return Err(missing()),
            Err(error) => return Err(self.failed()(error)),
        };
        let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|e| self.damaged(name)(e.to_string()))?;
        if manifest.format != FORMAT {
            let why = format!("it has format {}, this version reads format {FORMAT}", manifest.format);
            return Err(self.damaged(name)(why));
        }
        Ok(manifest)
    }

    /// The newest backup.
    ///
    /// # Errors
    /// A place that cannot be read, or has none.
    pub async fn newest(&self) -> Result<Manifest, BackupError> {
        let newest = self.list().await?.pop();
        newest.ok_or_else(|| BackupError::Place { place: self.shown.clone(), why: "there is no backup yet".into() })
    }

    fn damaged(&self, name: &str) -> impl Fn(String) -> BackupError + use<> {
        let (place, name) = (self.shown.clone(), name.to_owned());
        move |why| BackupError::Damaged { place: place.clone(), name: name.clone(), why }
    }

    /// Takes a backup of the state as it is applied on this node. `component` gives the bytes of one.
    ///
    /// # Errors
    /// A place that cannot be written, a component that cannot be had. There is no backup then.
    pub async fn take(
        &self,
        replica: &Replica,
        version: &str,
        component: ComponentBytes<'_>,
    ) -> Result<Manifest, BackupError> {
        let dir = replica.incoming();
        std::fs::create_dir_all(dir).map_err(|source| BackupError::File {
            what: "create",
            path: dir.into(),
            source,
        })?;
        let file = dir.join(format!("backup-{}.rows", Uuid::new_v4().simple()));
        let taken = self.take_through(&file, replica, version, component).await;
        let _ = std::fs::remove_file(&file);
        taken
    }

    async fn take_through(
        &self,
        file: &FilePath,
        replica: &Replica,
        version: &str,
        component: ComponentBytes<'_>,
    ) -> Result<Manifest, BackupError> {
        let (db, path) = (replica.db().clone(), file.to_owned());
        let written = replica.db().off_thread(move || export(&db, &path)).await;
        let io = |source| BackupError::File { what: "write", path: file.to_owned(), source };
        let Export { index, term, contents, rows } = written.map_err(io)?;
        let cluster = contents.cluster.ok_or_else(|| io(io::Error::other("no cluster is founded yet")))?;
        let components = contents.components;
        for digest in &components {
            self.keep_component(digest, component).await?;
        }
        let manifest = Manifest {
            format: FORMAT,
            name: format!("{}-{index:012}", cluster.time.time().format("%Y%m%dT%H%M%SZ")),
            cluster: cluster.id,
            epoch: cluster.epoch,
            taken_at: cluster.time,
            index,
            term,
            hash: format!("{:032x}", contents.hash),
            jobs: contents.jobs,
            rows,
            components,
            version: version.to_owned(),
        };
        let mut from = tokio::fs::File::open(file).await.map_err(io)?;
        let mut upload = BufWriter::new(self.store.clone(), self.part(&manifest.name, "rows"));
        let copied = tokio::io::copy(&mut from, &mut upload).await;
        let copied = match copied {
            Ok(_) => upload.shutdown().await,
            Err(error) => {
                let _ = upload.abort().await;
                Err(error)
            }
        };
        copied.map_err(self.failed())?;
        let text = serde_json::to_vec_pretty(&manifest).map_err(|e| io(io::Error::other(e)))?;
        let named = self.store.put(&self.part(&manifest.name, "manifest.json"), PutPayload::from(text)).await;
        named.map_err(self.failed())?;
        Ok(manifest)
    }

    async fn keep_component(&self, digest: &Digest, component: ComponentBytes<'_>) -> Result<(), BackupError> {
        match self.store.head(&self.component(digest)).await {
            Ok(_) => return Ok(()),
            Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(self.failed()(error)),
        }
        let bytes = component(*digest).await.map_err(|why| BackupError::Component { digest: *digest, why })?;
        let mut upload = BufWriter::new(self.store.clone(), self.component(digest));
        let written = async {
            upload.write_all(&bytes).await?;
            upload.shutdown().await
        };
        written.await.map_err(self.failed::<io::Error>())
    }

    /// Brings the rows of a backup into a file, and checks them: their digest, the state's hash, and that this version
    /// can read each.
    ///
    /// # Errors
    /// A backup that is damaged, a place that cannot be read.
    pub async fn fetch_rows(&self, manifest: &Manifest, file: &FilePath) -> Result<Contents, BackupError> {
        let io = |source| BackupError::File { what: "write", path: file.to_owned(), source };
        let found = self.store.get(&self.part(&manifest.name, "rows")).await;
        let damaged = self.damaged(&manifest.name);
        let found = found.map_err(|error| match error {
            object_store::Error::NotFound { .. } => damaged("its rows are gone".into()),
            other => self.failed()(other),
        })?;
        let mut stream = found.into_stream();
        let mut to = tokio::fs::File::create(file).await.map_err(io)?;
        while let Some(bytes) = stream.next().await {
            to.write_all(&bytes.map_err(self.failed())?).await.map_err(io)?;
        }
        to.sync_all().await.map_err(io)?;
        let path = file.to_owned();
        let read = tokio::task::spawn_blocking(move || read_back(&path)).await.map_err(|e| damaged(e.to_string()))?;
        let (part, contents) = read.map_err(|e| damaged(e.to_string()))?;
        let hash = format!("{:032x}", contents.hash);
        if part != manifest.rows || hash != manifest.hash {
            return Err(damaged(format!(
                "its rows are {} bytes with {} and the state's hash {hash}; the manifest says {} bytes, {} and {}",
                part.bytes, part.digest, manifest.rows.bytes, manifest.rows.digest, manifest.hash
            )));
        }
        Ok(contents)
    }

    /// Brings a component of a backup.
    ///
    /// # Errors
    /// One that is gone or damaged, a place that cannot be read.
    pub async fn fetch_component(&self, manifest: &Manifest, digest: &Digest) -> Result<Bytes, BackupError> {
        let damaged = self.damaged(&manifest.name);
        let found = self.store.get(&self.component(digest)).await.map_err(|error| match error {
            object_store::Error::NotFound { .. } => damaged(format!("component {digest} is gone")),
            other => self.failed()(other),
        })?;
        let bytes = found.bytes().await.map_err(self.failed())?;
        match Digest::of(&bytes) {
            found if found == *digest => Ok(bytes),
            found => Err(damaged(format!("under the name of component {digest} there is {found}"))),
        }
    }

    /// Reads everything of a backup, and checks it as a restore would.
    ///
    /// # Errors
    /// What a restore would stumble over.
    pub async fn verify(&self, manifest: &Manifest) -> Result<(), BackupError> {
        let file = std::env::temp_dir().join(format!("tickhost-verify-{}", Uuid::new_v4().simple()));
        let rows = self.fetch_rows(manifest, &file).await;
        let _ = std::fs::remove_file(&file);
        rows?;
        for digest in &manifest.components {
            self.fetch_component(manifest, digest).await?;
        }
        Ok(())
    }

    /// Removes the oldest backups of a cluster beyond the newest `keep`, and components that none names. Those of other
    /// clusters, and of an earlier life of this one, stay.
    ///
    /// # Errors
    /// A place that cannot be changed.
    pub async fn prune(&self, cluster: Uuid, keep: usize) -> Result<(), BackupError> {
        let all = self.list().await?;
        let own = all.iter().filter(|manifest| manifest.cluster == cluster).count();
        let surplus = own.saturating_sub(keep.max(1));
        let (mut gone, mut kept) = (Vec::new(), Vec::new());
        for manifest in all {
            let is_surplus = manifest.cluster == cluster && gone.len() < surplus;
            if is_surplus { gone.push(manifest) } else { kept.push(manifest) }
        }
        for manifest in gone {
            // First what makes it one: what is left of it is no backup.
            for part in ["manifest.json", "rows"] {
                self.store.delete(&self.part(&manifest.name, part)).await.map_err(self.failed())?;
            }
        }
        let named = |path: &Path| kept.iter().flat_map(|m| &m.components).any(|digest| self.component(digest) == *path);
        let components: Vec<_> =
            self.store.list(Some(&self.components())).try_collect().await.map_err(self.failed())?;
        let before = chrono::Utc::now() - UNNAMED_FOR;
        for object in components {
            if !named(&object.location) && object.last_modified < before {
                self.store.delete(&object.location).await.map_err(self.failed())?;
            }
        }
        Ok(())
    }
}

/// The rows of one moment, in a file.
struct Export {
    index: u64,
    term: u64,
    contents: Contents,
    rows: Part,
}

/// Writes the rows, and reads back what they are.
fn export(db: &Db, file: &FilePath) -> io::Result<Export> {
    let (last, _) = machine::write_rows(db, file)?;
    let last = last.ok_or_else(|| io::Error::other("this node has no state yet"))?;
    let mut contents = Contents::default();
    read_rows(file, |key, value| contents.add(key, value).map_err(io::Error::other))?;
    Ok(Export { index: last.index, term: last.leader_id.term, contents, rows: part_of(file)? })
}

/// As a restore reads them: into a state.
fn read_back(file: &FilePath) -> io::Result<(Part, Contents)> {
    let part = part_of(file)?;
    let (mut contents, mut rows) = (Contents::default(), Vec::new());
    read_rows(file, |key, value| {
        rows.push((key.to_vec(), value.to_vec()));
        contents.add(key, value).map_err(io::Error::other)
    })?;
    State::load(rows.iter().map(|(key, value)| (key.as_slice(), value.as_slice()))).map_err(io::Error::other)?;
    Ok((part, contents))
}

fn part_of(file: &FilePath) -> io::Result<Part> {
    let mut reader = std::fs::File::open(file)?;
    let (mut sha, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; 64 << 10]);
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(Part { bytes, digest: Digest(sha.finalize().into()) }),
            read => {
                sha.update(&buffer[..read]);
                bytes += read as u64;
            }
        }
    }
}

/// Makes an empty data directory that of a group of one, with the rows of a backup as its state.
///
/// # Errors
/// A directory that cannot be used.
pub async fn found_from(setup: &Setup, address: &str, manifest: &Manifest, rows: PathBuf) -> Result<(), OpenError> {
    let (db, last) = (setup.db.clone(), (manifest.term, manifest.index));
    let installed = Machine::found_from(db, setup.node, address, last, rows).await;
    installed.map_err(|e| OpenError::Raft { dir: setup.db.dir().to_owned(), why: e.to_string() })
}
