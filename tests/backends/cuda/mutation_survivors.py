"""Mutations that nothing notices, by the reason why they change nothing that may be observed."""

EQUIVALENT: dict[str, tuple[str, ...]] = {
    "A fresh mbarrier counts as having ended the phase in front of its first, so waiting for "
    "parity 1, which (0 - 1) & 1 is, returns at once: the guard only saves the instruction.": (
        "mc_collectives.cuh: if (<item >= STAGES => true>) wait(empty + item % STAGES, "
        "(item / STAGES - 1) & 1);",
    ),
    "Producer and consumers find a tile by the same function, so all move to the next place.": (
        "mc_collectives.cuh: MC_INLINE unsigned char* place(int item) const { return tiles + "
        "<item % STAGES => (item + 1) % STAGES> * tile_bytes; }",
    ),
    "Known when compiling: where the threads or warps divide all there is, none has one behind the "
    "last, so the other part never holds.": (
        "mc_attention.cuh: if (<PAIRS % OVER_LANES => true> && pair >= PAIRS) break;",
        "mc_attention.cuh: if (<PAIRS % OVER_LANES => true> && pair >= PAIRS) break; #2",
        "mc_attention.cuh: if (<PADDED % AT_ONCE => true> && query >= PADDED) break;",
        "mc_attention.cuh: if (<GROUPS % OVER_GROUPS => true> && of >= GROUPS) break;",
        "mc_attention.cuh: if (<GROUPS % OVER_GROUPS => true> && of >= GROUPS) return;",
        "mc_attention.cuh: if (<GROUPS % OVER_GROUPS => true> && warp / OVER_LANES + m * "
        "OVER_GROUPS >= GROUPS) break;",
        "attention_block.cu: if (<HIDDEN % 16 => true> && column >= HIDDEN) continue;",
        "attention_block.cu: if (<BATCH * ROWS / 2 % WORKERS => true> && i >= BATCH * ROWS / 2) "
        "break;",
        "attention_split_head.cu: if (<HIDDEN % 16 => true> && column >= HIDDEN) continue;",
        "latent_block.cu: if (<HIDDEN % 16 => true> && column >= HIDDEN) return;",
        "latent_block.cu: if (<LATENT % 128 => true> && r >= LATENT) break;",
    ),
    "What the threads own is at least all there is, so the next one of each lies behind the last, "
    "where a guard in the loop leaves it out.": (
        "mc_attention.cuh: for (int n = 0; n < <OWN_QUERIES => (OWN_QUERIES) + 1>; n++) { #2",
        "mc_attention.cuh: for (int m = 0; m < <OWN_GROUPS => (OWN_GROUPS) + 1>; m++) { #2",
        "mc_attention.cuh: for (int i = 0; i < <OWN_TWOS => (OWN_TWOS) + 1>; i++) {",
        "latent_block.cu: for (int c = 0; c < <KEY_CHUNKS => (KEY_CHUNKS) + 1>; c++) {",
        "latent_block.cu: for (int c = 0; c < <KEY_CHUNKS => (KEY_CHUNKS) + 1>; c++) { #2",
    ),
    "Gives weights to rows that fill up a group of queries; finish() leaves these rows out.": (
        "mc_attention.cuh: if (<query < QUERIES => true> && token < count && "
        "seen(query, begin + token)) {",
        "mc_attention.cuh: if (query< <  =>  <= >QUERIES && token < count && "
        "seen(query, begin + token)) {",
    ),
    "Sums of a group behind the last, of weights that were not loaded; finish() leaves them out.": (
        "mc_attention.cuh: if (GROUPS % OVER_GROUPS && warp / OVER_LANES + m * OVER_GROUPS"
        "< >=  =>  > >GROUPS) break;",
    ),
    "With one token less than the window the first seen is token 0 either way.": (
        "attention_block.cu: first = WINDOW && cached + 1< >  =>  >= >WINDOW ? "
        "cached + 1 - WINDOW : 0;",
        "attention_split_head.cu: first = WINDOW && cached + 1< >  =>  >= >WINDOW ? "
        "cached + 1 - WINDOW : 0;",
    ),
    "A block behind the last tile has no tiles, and where they would begin is not asked.": (
        "attention_block.cu: tile = begin + <min(rank * share, all) => (rank * share)>;",
    ),
    "The thread that brings the tiles is not number 0 of its block, so it waits all the same.": (
        "attention_block.cu: <mc::wait_for_previous_grid(); => if (mc::thread()) "
        "mc::wait_for_previous_grid();>",
        "attention_split_head.cu: <mc::wait_for_previous_grid(); => if (mc::thread()) "
        "mc::wait_for_previous_grid();>",
        "latent_block.cu: <mc::wait_for_previous_grid(); => if (mc::thread()) "
        "mc::wait_for_previous_grid();>",
    ),
    "Zero becomes zero.": (
        "attention_block.cu: if (tiles< <  =>  <= >0) tiles = 0;",
        "attention_split_head.cu: if (tiles< <  =>  <= >0) tiles = 0;",
    ),
    "All blocks of a cluster, and of clusters that share a key head, have the same bits of the new "
    "keys and values, and all clusters of the new latent: any of them, or all, may store them.": (
        "attention_block.cu: if (part >= GROUP && <rank == CLUSTER - 1 => rank == 0>) {",
        "latent_block.cu: if (<cluster == 0 => true> && last) {",
        "attention_block.cu: if (part >= GROUP && <rank == CLUSTER - 1 => true>) {",
        "attention_block.cu: if (part >= GROUP && <rank == CLUSTER - 1 => rank == 0> && "
        "sharer == 0) {",
        "attention_block.cu: if (part >= GROUP && <rank == CLUSTER - 1 => true> && sharer == 0) {",
        "attention_block.cu: if (part >= GROUP && rank == CLUSTER - 1 && <sharer == 0 => true>) {",
    ),
    "Threads without lanes of the head then hold what lies behind the query, the next head or the "
    "new key, and multiply it by keys that are zeros.": (
        "attention_split_head.cu: if (<active => true>) {",
    ),
    "A tile has no sixteen behind its last token, so a token is one of the tile's either way.": (
        "mc_group_attention.cuh: const int q = lane() % 4, count = <min(TOKENS, limit - begin) => "
        "(limit - begin)>;",
    ),
    "No tile of a kernel that is judged here has more sixteens than there are warps; prompts have "
    "edits of their own (tests/e2e/test_task_prompt_edits.py).": (
        "mc_group_attention.cuh: for (int unit = (number() + SHARE - turn * UNITS % SHARE) % "
        "SHARE; unit < UNITS; unit< +=  =>  = >SHARE) {",
    ),
    "By tiles the new key and value are rounded again when they become a tile, which gives what "
    "rounding once does.": (
        "attention_block.cu: projected[b * ROWS + row + k] = <part < GROUP => true> ? pair[k] : "
        "mc::widen(stored);",
        "attention_block.cu: projected[b * ROWS + row + k] = part< <  =>  <= >GROUP ? pair[k] : "
        "mc::widen(stored);",
    ),
    "Columns of a block and steps of a thread are multiples of four.": (
        "attention_split_head.cu: for (int i = me * 4; i < <OWN_OUTPUTS => (OWN_OUTPUTS) - 1>; "
        "i += WORKERS * 4) {",
    ),
    "Says where the vectors of a row group behind the last would lie, of which none is read.": (
        "latent_block.cu: const T* vectors = columns(first + <min(group, count - 1) => (group)>);",
    ),
    "One thread more sums two rotary lanes, and does not store them.": (
        "latent_block.cu: if (2 * me< <  =>  <= >LATENT) {",
    ),
    "Only blocks that have nothing to do differ: what they have is counted below zero instead of "
    "zero, and every loop over it ends as early.": (
        "rows_product.cu: const int first = <min(rank * OWN_BLOCKS, BLOCKS) => (rank * OWN_BLOCKS)>"
        ", own = min(OWN_BLOCKS, BLOCKS - first);",
        "rows_product.cu: const int from = <min(rank * share, done + 1) => (rank * share)>, "
        "to = min(from + share, done + 1);",
    ),
}
