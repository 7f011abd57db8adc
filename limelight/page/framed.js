// Pictures that fill the room they have. All that must be drawn waits for the next frame, and there
// everyone looks how much room there is before anyone draws: whoever looks after another has drawn
// makes the browser lay out the whole page again, for 64 strips 64 times.

const FRAMED_SPARE = 8; // milliseconds of a frame for what nobody sees yet
const framedWaiting = new Set();

/** A picture: its `drawNow(width, height)` is called when its room has a size. */
export class Framed {
  /** Fill this element, and do it again when its size changes. */
  fill(room) {
    this.room = room;
    this.drawnFor = null; // width and height
    new ResizeObserver(() => {
      if (String(framedSize(this)) !== String(this.drawnFor)) this.draw();
    }).observe(room);
  }

  /** Draw in the next frame, however often that is asked for. */
  draw() {
    if (!framedWaiting.size) requestAnimationFrame(framedDraw);
    framedWaiting.add(this);
  }
}

/** What is in sight is drawn now; the rest as far as there is time, and then in the frames after. */
function framedDraw() {
  const views = [...framedWaiting];
  framedWaiting.clear();
  const looked = views.map((view) => ({ view, size: framedSize(view), seen: framedSeen(view) }));
  const late = performance.now() + FRAMED_SPARE;
  looked.sort((a, b) => b.seen - a.seen);
  for (const { view, size, seen } of looked) {
    if (!seen && performance.now() > late) view.draw();
    else framedFill(view, size);
  }
}

function framedFill(view, size) {
  view.drawnFor = size;
  if (size[0]) view.drawNow(...size); // else it is not on the page yet, or its tab is hidden
}

function framedSize({ room }) {
  return [room.clientWidth, room.clientHeight];
}

function framedSeen({ room }) {
  const { top, bottom } = room.getBoundingClientRect();
  return bottom >= 0 && top <= window.innerHeight;
}
