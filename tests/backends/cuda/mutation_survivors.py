"""Mutations that nothing notices, by the reason why they change nothing that may be observed."""

EQUIVALENT: dict[str, tuple[str, ...]] = {
    "Known when compiling: where the threads or warps divide all there is, none has one behind "
    "the last, so the other part never holds.": (
        "mc_attention.cuh: if (<PAIRS % OVER_LANES => true> && pair >= PAIRS) break;",
        "mc_attention.cuh: if (<PAIRS % OVER_LANES => true> && pair >= PAIRS) break; #2",
        "mc_attention.cuh: if (<PADDED % AT_ONCE => true> && query >= PADDED) break;",
        "mc_attention.cuh: if (<GROUPS % OVER_GROUPS => true> && of >= GROUPS) break;",
        "mc_attention.cuh: if (<GROUPS % OVER_GROUPS => true> && of >= GROUPS) return;",
        "mc_attention.cuh: if (<GROUPS % OVER_GROUPS => true> && warp / OVER_LANES + m * "
        "OVER_GROUPS >= GROUPS) break;",
    ),
    "What the threads own is at least all there is, so the next one of each lies behind the "
    "last, where a guard in the loop leaves it out.": (
        "mc_attention.cuh: for (int n = 0; n < <OWN_QUERIES => (OWN_QUERIES) + 1>; n++) { #2",
        "mc_attention.cuh: for (int m = 0; m < <OWN_GROUPS => (OWN_GROUPS) + 1>; m++) { #2",
        "mc_attention.cuh: for (int i = 0; i < <OWN_TWOS => (OWN_TWOS) + 1>; i++) {",
    ),
    "Gives weights to rows that fill up a group of queries; finish() leaves these rows out.": (
        "mc_attention.cuh: if (<query < QUERIES => true> && token < count && seen(query, begin + "
        "token)) {",
        "mc_attention.cuh: if (query< <  =>  <= >QUERIES && token < count && seen(query, begin + "
        "token)) {",
    ),
    "Sums of a group behind the last, of weights that were not loaded; finish() leaves them out.": (
        "mc_attention.cuh: if (GROUPS % OVER_GROUPS && warp / OVER_LANES + m * OVER_GROUPS< >=  "
        "=>  > >GROUPS) break;",
    ),
}
