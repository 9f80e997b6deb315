//! What a prefix cache asks for: blocks held for nobody, and sequences that start with blocks of others.
//!
//! Which blocks are kept, and for how long, is decided above; here they are held, by number, with one
//! reference each. A held block that is in no table never moves, except by `compact`.

use rustc_hash::FxHashSet;

use super::{Admission, BlockManager};
use crate::error::{Error, Result};
use crate::oplog::Operation;
use crate::{BlockId, Owner, SeqId};

impl BlockManager {
    /// Takes one reference more on the blocks at these places of the sequence's table, for a cache; each
    /// block can be held once.
    pub fn hold(&mut self, seq: SeqId, places: &[usize]) -> Result<()> {
        self.refuse_if_reserving("hold")?;
        let table = self.table(seq)?;
        let mut blocks = Vec::with_capacity(places.len());
        let mut distinct = FxHashSet::default();
        for &place in places {
            let Some(&block) = table.blocks.get(place) else {
                let most = format!("allowed 0 to {}", table.blocks.len() - 1);
                return Err(Error::invalid("places", place, most));
            };
            if self.held.contains(&block) || !distinct.insert(block) {
                return Err(Error::invalid("places", place, format!("its block {block} is held already")));
            }
            blocks.push(block);
        }
        for block in blocks {
            self.references[block.index()] += 1;
            self.held.insert(block);
            if let Some(gather) = &mut self.gather {
                gather.groups.pin(block);
            }
        }
        Ok(())
    }

    /// Drops the cache's reference on blocks that it holds, in this order.
    pub fn let_go(&mut self, blocks: &[BlockId]) -> Result<()> {
        let mut distinct = FxHashSet::default();
        for &block in blocks {
            self.references(block)?;
            if !self.held.contains(&block) || !distinct.insert(block) {
                return Err(Error::invalid("blocks", block, "allowed are blocks that are held, each once"));
            }
        }
        if blocks.is_empty() {
            return Ok(());
        }
        self.policy.mark(Operation::LetGo, Owner(0), None, blocks.len() as u64);
        for &block in blocks {
            self.held.remove(&block);
            self.drop_reference(block)?;
            if let Some(gather) = &mut self.gather {
                gather.groups.unpin(block, self.references[block.index()]);
            }
        }
        Ok(())
    }

    /// Whether a new sequence can start with these blocks.
    pub(super) fn check_shared(&self, ask: Admission, shared: &[BlockId]) -> Result<()> {
        self.refuse_if_reserving("shared")?;
        if let Some(prefix) = ask.prefix {
            return Err(Error::invalid("prefix", prefix, "goes without shared blocks"));
        }
        if self.blocks_for(ask.tokens) < shared.len() as u64 {
            let least = format!("at least the {} shared blocks", shared.len());
            return Err(Error::invalid("tokens", ask.tokens, least));
        }
        let mut distinct = FxHashSet::default();
        for &block in shared {
            if self.references(block)? == 0 || !distinct.insert(block) {
                return Err(Error::invalid("shared", block, "allowed are blocks in use, each once"));
            }
        }
        Ok(())
    }
}
