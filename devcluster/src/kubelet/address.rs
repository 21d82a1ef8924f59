//! Addresses of nodes and pods: each is given out once.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, UdpSocket},
};

use rand::Rng as _;

/// Which addresses pods get.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Addressing {
    /// Addresses of 127.64.0.0/10 that can be dialled on this machine (Linux).
    #[default]
    Loopback,
    /// Addresses of 10.244.0.0/16 that nobody can dial; a proxy listens on 127.0.0.1 and the
    /// annotation `devcluster/port-map` of its pod says where.
    Virtual,
}

/// 127.64.0.0/10 in blocks of 4096 addresses.
const LOOPBACK_BASE: u32 = u32::from_be_bytes([127, 64, 0, 0]);
const BLOCK_SIZE: u32 = 1 << 12;
const BLOCKS: u32 = (1 << 22) / BLOCK_SIZE;
/// Port whose binding on the first address of a block claims the block on this machine.
const CLAIM_PORT: u16 = 10250;

const VIRTUAL_BASE: u32 = u32::from_be_bytes([10, 244, 0, 0]);
const VIRTUAL_SIZE: u32 = 1 << 16;

/// Gives out addresses, none twice in the pool's life.
///
/// A loopback pool holds blocks that no other pool on the machine holds at the same time, in this
/// or another process: a UDP socket bound in the block is the claim, so it ends with the process.
#[derive(Debug)]
pub(super) struct AddressPool {
    addressing: Addressing,
    claims: Vec<UdpSocket>,
    next: u32,
    end: u32,
}

impl AddressPool {
    pub(super) fn new(addressing: Addressing) -> Self {
        let (next, end) = match addressing {
            Addressing::Loopback => (0, 0),
            Addressing::Virtual => (VIRTUAL_BASE + 1, VIRTUAL_BASE + VIRTUAL_SIZE - 1),
        };
        Self {
            addressing,
            claims: Vec::new(),
            next,
            end,
        }
    }

    /// The next address.
    ///
    /// # Errors
    ///
    /// `AddrNotAvailable` when every address was given out, or no block can be bound.
    pub(super) fn take(&mut self) -> io::Result<IpAddr> {
        if self.next == self.end {
            self.refill()?;
        }
        let address = self.next;
        self.next += 1;
        Ok(Ipv4Addr::from(address).into())
    }

    fn refill(&mut self) -> io::Result<()> {
        if self.addressing == Addressing::Virtual {
            return Err(io::Error::new(
                io::ErrorKind::AddrNotAvailable,
                "all addresses of 10.244.0.0/16 were given out",
            ));
        }
        let mut last = None;
        let first = rand::rng().random_range(0..BLOCKS);
        for offset in 0..BLOCKS {
            let base = LOOPBACK_BASE + (first + offset) % BLOCKS * BLOCK_SIZE;
            match UdpSocket::bind((Ipv4Addr::from(base), CLAIM_PORT)) {
                Ok(claim) => {
                    self.claims.push(claim);
                    self.next = base + 1;
                    self.end = base + BLOCK_SIZE;
                    return Ok(());
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn two_pools_never_give_out_the_same_address() {
        let mut pools = [
            AddressPool::new(Addressing::Loopback),
            AddressPool::new(Addressing::Loopback),
        ];
        let mut seen = HashSet::new();
        for pool in &mut pools {
            for _ in 0..2 * BLOCK_SIZE {
                let address = pool.take().unwrap();
                assert!(seen.insert(address), "{address} was given out twice");
                let IpAddr::V4(v4) = address else {
                    panic!("{address}")
                };
                assert_eq!(u32::from(v4) & 0xFFC0_0000, LOOPBACK_BASE, "{address}");
            }
        }
    }

    #[test]
    fn virtual_addresses_run_out_with_an_error() {
        let mut pool = AddressPool::new(Addressing::Virtual);
        let mut given = HashSet::new();
        let error = loop {
            match pool.take() {
                Ok(address) => assert!(given.insert(address)),
                Err(error) => break error,
            }
        };
        assert_eq!(given.len(), 65_534);
        assert!(error.to_string().contains("10.244.0.0/16"));
    }
}
