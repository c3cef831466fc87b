"""One queue over several devices: every item is given once, all devices end together, no item waits for a clip."""

from __future__ import annotations

import heapq
import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tvae.pipeline.jobs.devices.shares import AHEAD, BESIDE, FIRST, LEAST, LEAST_MOST, LEAST_SECONDS, MOST, Shares
from tvae.pipeline.jobs.outputs import Item


def items(kinds: str) -> list[Item]:
    """One for each letter: a picture, a clip, or (?) what its name does not tell."""
    known = {"p": frozenset({"image"}), "c": frozenset({"video"}), "?": frozenset({"image", "video"})}
    return [Item(Path(f"{n}"), n, known[k], Path(), f"{n}", False, True) for n, k in enumerate(kinds)]  # type: ignore[arg-type]


def given_to(shares: Shares, device: int) -> list[Item]:
    taken = []
    while (item := shares.next_for(device)) is not None:
        taken.append(item)
    return taken


def ends(kinds: str, speeds: list[float], seconds: dict[str, float]) -> list[float]:
    """When each device is done: it does its items one after the other, as many seconds as these by its speed."""
    at = [0.0]
    shares, done = Shares(items(kinds), len(speeds), lambda: at[0]), [0.0] * len(speeds)
    hands: list[list[Item]] = [[] for _ in speeds]
    clock: list[tuple[float, int]] = []

    def fill() -> None:
        taking = {*range(len(speeds))}
        while taking:
            for device in sorted(taking):
                item = shares.next_for(device)
                if item is None:
                    taking.discard(device)
                else:
                    hands[device].append(item)

    def start(device: int, now: float) -> None:
        if hands[device]:
            item = hands[device][0]
            kind = kinds[item.index]
            shares.started(item.index, "video" if kind in "c?" else "image")
            heapq.heappush(clock, (now + seconds[kind] / speeds[device], device))

    fill()
    for device in range(len(speeds)):
        start(device, 0)
    while clock:
        now, device = heapq.heappop(clock)
        at[0] = now
        shares.ended(device, hands[device].pop(0).index)
        done[device] = now
        idle = [n for n, hand in enumerate(hands) if not hand and n != device]
        fill()
        for each in {device, *idle}:
            start(each, now)
    assert not shares.left
    return done


def test_items_that_take_long_are_not_held_back() -> None:
    """The last of them are given one by one, whoever gets done."""
    assert max(ends("p" * 40, [1, 1, 1, 0.2], {"p": 5})) <= 40 * 5 / 3.2 + LEAST * 5 / 0.2
    at = [0.0]
    shares = Shares(items("p" * 600), 2, lambda: at[0])
    for index in range(40):
        given_to(shares, 0)
        at[0] += 0.001
        shares.ended(0, index)
        assert shares._least(0) == (LEAST if index < 8 else LEAST_MOST), "a few say little"
    for index in range(40, 80):
        given_to(shares, 0)
        at[0] += 0.05
        shares.ended(0, index)
    assert shares._least(0) == int(LEAST_SECONDS / 0.05)
    assert shares._least(1) == LEAST


def test_equal_devices_end_together() -> None:
    done = ends("p" * 600, [1, 1], {"p": 1})
    assert max(done) <= 302
    done = ends("p" * 600, [1] * 8, {"p": 1})
    assert max(done) <= 78


def test_a_slow_device_holds_nothing_up() -> None:
    done = ends("p" * 600, [1, 0.1], {"p": 1})
    assert max(done) <= 600 / 1.1 + LEAST / 0.1


def test_a_clip_holds_no_picture_up() -> None:
    done = ends("p" * 50 + "c" + "p" * 500, [1, 1], {"p": 1, "c": 400})
    assert max(done) <= 950 / 2 + LEAST
    assert ends("cccc", [1, 1], {"c": 10}) == [20, 20]
    assert max(ends("cpcpcp" * 10, [1, 1, 1], {"p": 1, "c": 9})) <= 300 / 3 + 18


def test_pictures_come_several_at_a_time() -> None:
    shares = Shares(items("p" * 20000), 2)
    assert len(given_to(shares, 0)) == FIRST
    for index in range(300):
        shares.ended(0, index)
        given_to(shares, 0)
    assert [*shares._hands[0]] == [*range(300, 300 + MOST)]
    assert len(given_to(Shares(items("p" * 8), 2), 0)) == LEAST
    assert len(given_to(Shares(items("ccc"), 2), 0)) == 1


def test_the_only_device_has_pictures_beside_its_clips() -> None:
    shares = Shares(items("cccp" + "p" * 40), 1)
    assert [item.index for item in given_to(shares, 0)] == [0, 1, *range(3, 1 + FIRST)], "a few, before the third clip"
    shares.ended(0, 0)
    assert [item.index for item in given_to(shares, 0)] == [2, FIRST + 1], "one more with each that is done"
    shares.ended(0, 3)
    assert len(given_to(shares, 0)) == 2
    shares.ended(0, 1)
    shares.ended(0, 2)
    assert len(given_to(shares, 0)) > 3, "as many as ever"
    shares = Shares(items("cc" + "p" * 1000), 1)
    for index in [*range(2, 2 + 4 * BESIDE)]:
        given_to(shares, 0)
        shares.ended(0, index)
    assert len(given_to(shares, 0)) == 1
    assert len(shares._hands[0]) == BESIDE, "two of them clips: enough that the run need not hear of each at once"
    shares = Shares(items("c" * 2 * AHEAD + "p"), 1)
    assert [item.index for item in given_to(shares, 0)] == [0, 1], "not all are looked through"
    shares = Shares(items("cc"), 1)
    assert len(given_to(shares, 0)) == 1, "another device may come"
    assert shares.join() == 1
    shares.regain(1)
    assert len(given_to(shares, 1)) == 1
    assert not given_to(shares, 0)


def test_what_turns_out_to_be_a_clip() -> None:
    shares = Shares(items("?" * 100), 2)
    first = given_to(shares, 0)
    assert len(first) > LEAST
    for item in first[1:]:
        shares.ended(0, item.index)
    shares.started(first[0].index, "video")
    assert shares.next_for(0) is None
    shares.ended(0, first[0].index)
    assert shares.next_for(0) is not None


def test_a_lost_device_gives_back_in_order() -> None:
    shares = Shares(items("p" * 40), 2)
    mine, others = given_to(shares, 0), given_to(shares, 1)
    shares.started(mine[1].index, "image")
    shares.ended(0, mine[0].index)
    loss = shares.lost(0)
    assert (loss.begun, loss.returned) == ([mine[1]], mine[2:])
    assert shares.next_for(0) is None
    for item in others:
        shares.ended(1, item.index)
    assert given_to(shares, 1)[: len(mine) - 2] == mine[2:]


def test_what_a_device_looked_at_is_done_again_last_and_alone() -> None:
    shares = Shares(items("p" * 40), 3)
    mine, others = given_to(shares, 0), given_to(shares, 1)
    shares.took(0, mine[0].index, 7)
    shares.took(0, mine[2].index, 7)
    shares.took(0, mine[3].index, 8)
    shares.started(mine[0].index, "image")
    loss = shares.lost(0, silently=True)
    assert (loss.begun, loss.returned, loss.fatal) == ([mine[0]], mine[1:], None)
    ended = [others[0].index]
    while shares.left:
        for item in others:
            ended.append(shares.ended(1, item.index).index)
        others = given_to(shares, 1)
        if len(ended) > 30 and any(map(shares.suspected, others)):
            break
    assert others == [mine[2]]
    shares.took(1, mine[2].index, 9)
    assert shares.lost(1, silently=True).fatal == mine[2]
    assert given_to(shares, 2) == [mine[3]]
    assert shares.ended(2, mine[3].index) == mine[3]
    assert not shares.left


@given(st.text("pc?", min_size=1, max_size=60), st.integers(1, 5), st.randoms(use_true_random=False))
def test_every_item_ends_once(kinds: str, devices: int, chance: random.Random) -> None:
    """Whatever the order, and whichever devices are lost, but one."""
    shares, hands, alive = Shares(items(kinds), devices), [dict[int, Item]() for _ in range(devices)], [*range(devices)]
    ended: list[int] = []
    while shares.left:
        for device in alive:
            fresh = given_to(shares, device)
            hands[device] |= {item.index: item for item in fresh}
            clips = sum(i.kinds == {"video"} for i in hands[device].values())
            most = LEAST if len(alive) == 1 else 1
            assert not fresh or clips <= most
            assert not fresh or not clips or len(hands[device]) <= (BESIDE if len(alive) == 1 else 1)
        assert any(hands)
        device = chance.choice([n for n in alive if hands[n]])
        index = chance.choice([*hands[device]])
        shares.started(index, chance.choice(["image", "video"]))
        if len(alive) > 1 and chance.random() < 0.05:
            alive.remove(device)
            for n, looked_at in enumerate(chance.sample([*hands[device]], min(3, len(hands[device])))):
                shares.took(device, looked_at, n)
            loss = shares.lost(device, silently=chance.random() < 0.5)
            assert index in {item.index for item in loss.begun}
            ended += [item.index for item in loss.begun] + ([loss.fatal.index] if loss.fatal else [])
            hands[device] = {}
        else:
            ended.append(shares.ended(device, index).index)
            del hands[device][index]
    assert sorted(ended) == [*range(len(kinds))]


def test_a_device_that_joins() -> None:
    """It has nothing before it is regained, and its part from then on."""
    shares = Shares(items("p" * 20), 0)
    assert (shares.join(), shares.join()) == (0, 1)
    assert not given_to(shares, 0)
    shares.regain(0)
    shares.regain(1)
    assert given_to(shares, 1)
    assert given_to(shares, 0)


@given(st.text("pc?", min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_devices_come_and_go_and_each_item_ends_once(kinds: str, chance: random.Random) -> None:
    """Where what was begun is done again."""
    shares, alive, begun = Shares(items(kinds), 0), dict[int, list[Item]](), set[int]()
    ended, fatal = list[int](), list[int]()
    while shares.left:
        if not alive or chance.random() < 0.1:
            device = shares.join()
            shares.regain(device)
            alive[device] = []
        device = chance.choice([*alive])
        alive[device] += given_to(shares, device)
        for item in alive[device]:
            if chance.random() < 0.5:
                shares.took(device, item.index, chance.randrange(3))
            if chance.random() < 0.5:
                shares.started(item.index, "video" if kinds[item.index] == "c" else "image")
                begun.add(item.index)
        if chance.random() < 0.15:
            hand = alive.pop(device)
            loss = shares.lost(device, silently=chance.random() < 0.5, again=True)
            gone = [loss.fatal.index] if loss.fatal is not None else []
            assert sorted(item.index for item in hand) == sorted([*gone, *(item.index for item in loss.returned)])
            assert {item.index for item in loss.begun} == {item.index for item in hand} & begun
            begun -= {item.index for item in hand}
            fatal += gone
            if loss.returned and chance.random() < 0.1:
                shares.drop(loss.returned[0])
                fatal.append(loss.returned[0].index)
        elif alive[device]:
            item = alive[device].pop(chance.randrange(len(alive[device])))
            begun.discard(item.index)
            assert shares.ended(device, item.index) is item
            ended.append(item.index)
    assert sorted(ended + fatal) == [*range(len(kinds))]


def test_what_was_begun_in_a_process_that_ended_by_itself_is_done_alone() -> None:
    shares = Shares(items("ppp"), 1)
    hand = given_to(shares, 0)
    shares.started(hand[0].index, "image")
    loss = shares.lost(0, silently=True, again=True)
    assert (loss.begun, loss.fatal, loss.suspected) == ([hand[0]], None, True)
    shares.regain(0)
    alone = [given_to(shares, 0)]
    assert hand[0] not in alone[0]
    for item in alone[0]:
        shares.ended(0, item.index)
    rest = given_to(shares, 0)
    while rest != [hand[0]]:
        for item in rest:
            shares.ended(0, item.index)
        rest = given_to(shares, 0)
    shares.started(hand[0].index, "image")
    assert shares.lost(0, silently=True, again=True).fatal is hand[0]
    assert not shares.left
