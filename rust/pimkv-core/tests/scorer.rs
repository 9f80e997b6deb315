
/// Tokens larger than the runs that the scorer looks up are scored run by run.
#[test]
fn huge_tokens_are_scored_run_by_run() -> Result<(), Error> {
    // Low row bits and high channel bits, so that the runs of a token differ.
    let map = AddressMap::parse("row:2 ch:2 col:5 bg:2 row:12 ba:2 ch:3; ba^row:1", HBM3)?;
    let token_bursts = 1 << 14;
    let mut manager = BlockManager::new("paged", 4, 2, 1)?;
    manager.admit(SeqId(7), 5)?;
    let coalesce = Coalesce::Window(64);
    let mut scorer = Scorer::new(map.clone(), token_bursts * 64, token_bursts * 32, coalesce)?;
    let expected = from_scratch(&expand(&map, &manager, SeqId(7), token_bursts)?, coalesce, HBM3.banks());
    assert_eq!(scorer.observe(&mut manager, &[SeqId(7)])?, [expected]);
    Ok(())
}
