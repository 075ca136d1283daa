//! Nodes in network namespaces of their own, with cables between them that can be cut in either direction. Needs root.
//!
//! ```text
//!           this process                       10.77.0.N
//!   127.0.0.1 ──relay──▶ 127.0.0.1 ┐ room N ──cable──▶ switch ◀──cable── room M
//!             ◀──relay──           ┘
//! ```
//!
//! The nodes reach each other over the cables only. Their APIs, and the recorder, keep their addresses on loopback: relays
//! carry those from one namespace into the other.

use std::{
    fs::File,
    io,
    net::{Ipv4Addr, SocketAddr},
    os::fd::AsFd,
    process::{Child, Command, Stdio},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

/// A namespace: it is there as long as the process that holds it.
struct Room(Child);

impl Room {
    fn new() -> io::Result<Self> {
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "ip link set lo up && echo up && exec sleep infinity"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut first = [0; 2];
        let said = holder.stdout.take().map(|mut out| io::Read::read_exact(&mut out, &mut first));
        let room = Self(holder);
        match said {
            Some(Ok(())) => Ok(room),
            _ => Err(io::Error::other("a network namespace cannot be made: that needs root, and iproute2")),
        }
    }

    fn under(&self) -> Vec<String> {
        ["nsenter", "--target", &self.0.id().to_string(), "--net"].map(ToOwned::to_owned).to_vec()
    }

    fn run(&self, words: &[&str]) -> io::Result<()> {
        let under = self.under();
        let output = Command::new(&under[0]).args(&under[1..]).args(words).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr))))
    }

    fn namespace(&self) -> io::Result<File> {
        File::open(format!("/proc/{}/ns/net", self.0.id()))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Rooms for nodes, numbered from 1, around a switch.
pub struct Network {
    rooms: Vec<Room>,
    _switch: Room,
}

impl Network {
    /// Builds it.
    ///
    /// # Errors
    /// Where this process may not.
    pub fn new(nodes: usize) -> io::Result<Self> {
        let switch = Room::new()?;
        switch.run(&["ip", "link", "add", "switch", "type", "bridge"])?;
        switch.run(&["ip", "link", "set", "switch", "up"])?;
        let mut rooms = Vec::new();
        for node in 1..=nodes {
            let room = Room::new()?;
            let (cable, pid) = (format!("cable{node}"), room.0.id().to_string());
            switch.run(&["ip", "link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &pid])?;
            switch.run(&["ip", "link", "set", &cable, "master", "switch", "up"])?;
            room.run(&["ip", "addr", "add", &format!("{}/24", Self::address(node)), "dev", "eth0"])?;
            room.run(&["ip", "link", "set", "eth0", "up"])?;
            room.run(&["nft", "add table inet faults"])?;
            room.run(&["nft", "add chain inet faults arriving { type filter hook input priority 0; }"])?;
            rooms.push(room);
        }
        Ok(Self { rooms, _switch: switch })
    }

    fn room(&self, node: usize) -> &Room {
        &self.rooms[node - 1]
    }

    /// A node's address for its peers.
    pub fn address(node: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, u8::try_from(node).expect("a small number"))
    }

    /// What a node is run under.
    pub fn under(&self, node: usize) -> Vec<String> {
        self.room(node).under()
    }

    /// Lets this process reach what a node has on loopback, under the same address.
    ///
    /// # Panics
    /// Where the address is in use here.
    pub fn let_in(&self, node: usize, address: SocketAddr) {
        let inside = self.room(node).namespace().expect("the room's namespace");
        relay(None, Some(inside), address);
    }

    /// Lets every node reach what this process has on loopback, under the same address.
    ///
    /// # Panics
    /// Where the address is in use there.
    pub fn let_out(&self, address: SocketAddr) {
        for room in &self.rooms {
            relay(Some(room.namespace().expect("the room's namespace")), None, address);
        }
    }

    /// What one node sends does not arrive at the other any more.
    ///
    /// # Panics
    /// Where the rule is refused.
    pub fn cut(&self, from: usize, to: usize) {
        let rule = format!("add rule inet faults arriving ip saddr {} drop", Self::address(from));
        self.room(to).run(&["nft", &rule]).expect("cut a cable");
    }

    /// A node and all others do not reach each other any more.
    pub fn cut_off(&self, node: usize) {
        for other in (1..=self.rooms.len()).filter(|other| *other != node) {
            self.cut(node, other);
            self.cut(other, node);
        }
    }

    /// All cables are whole again.
    ///
    /// # Panics
    /// Where the rules stay.
    pub fn heal(&self) {
        for room in &self.rooms {
            room.run(&["nft", "flush chain inet faults arriving"]).expect("mend the cables");
        }
    }
}

/// Carries connections to an address in one namespace to the same address in another; `None` is this process's own.
fn relay(from: Option<File>, to: Option<File>, address: SocketAddr) {
    let (accepted, mut queue) = mpsc::unbounded_channel::<std::net::TcpStream>();
    let (bound, is_bound) = std::sync::mpsc::channel();
    within(from, async move || {
        let listener = TcpListener::bind(address).await.expect("listen for the relay");
        let _ = bound.send(());
        while let Ok((stream, _)) = listener.accept().await {
            let passed = stream.into_std().map(|stream| accepted.send(stream));
            if !matches!(passed, Ok(Ok(()))) {
                return;
            }
        }
    });
    within(to, async move || {
        while let Some(stream) = queue.recv().await {
            tokio::spawn(async move {
                let mut here = TcpStream::from_std(stream)?;
                let mut there = TcpStream::connect(address).await?;
                tokio::io::copy_bidirectional(&mut here, &mut there).await
            });
        }
    });
    is_bound.recv().expect("the relay listens");
}

/// Runs something on a thread in that namespace: a socket stays for ever in the one that it was made in.
fn within(namespace: Option<File>, work: impl AsyncFnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        if let Some(namespace) = namespace {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("enter the room");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(work());
    });
}
