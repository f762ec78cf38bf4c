# Faults in the votes of a quorum. Read by ../planted.

plant votes-unasked-until-the-renewal lock-runtime/src/store/quorum/ballot.rs \
    'asked.is_some_and(|receipt| receipt.connection().is_none())' \
    'asked.is_some_and(|receipt| receipt.connection().is_none()) && false' \
    lib store::quorum::tests::losing::a_vote_that_waits_for_a_connection_is_taken_once_it_is_open \
    'left: [0, 1]'

plant late-votes-left-behind lock-runtime/src/store/quorum/held.rs \
    'if ballot.is_over() && !is_busy' \
    'if ballot.is_over() && false && !is_busy' \
    lib store::quorum::tests::losing::a_vote_that_waits_for_a_connection_is_not_left_behind \
    'left: ["master 2'
