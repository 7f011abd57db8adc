// Pictures that fill the room they have. All that must be drawn waits for the next frame, and there
// everyone looks how much room there is before anyone draws: whoever looks after another has drawn
// makes the browser lay out the whole page again, for 64 strips 64 times. What is far out of sight is
// drawn when it comes near, or is printed: painting takes longer than all the rest.

const FRAMED_NEAR = 150; // pixels above and below the window
const framedWaiting = new Set();
const framedFar = new Map(); // from the room to the picture that would fill it
const framedSight = new IntersectionObserver(
  (met) => met.filter((one) => one.isIntersecting).forEach(({ target }) => framedFar.get(target)?.draw()),
  { rootMargin: `${FRAMED_NEAR}px` },
);
window.addEventListener("beforeprint", () => framedFar.forEach((view) => framedFill(view, framedSize(view))));

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

/** Draw what is near, and wait for the rest; what has left the page is forgotten. */
function framedDraw() {
  const views = [...framedWaiting];
  framedWaiting.clear();
  for (const room of framedFar.keys()) if (!room.isConnected) framedForget(room);
  const looked = views.map((view) => ({ view, size: framedSize(view), near: framedNear(view) }));
  for (const { view, size, near } of looked) {
    if (near || !size[0]) {
      framedForget(view.room);
      framedFill(view, size);
    } else {
      framedFar.set(view.room, view);
      framedSight.observe(view.room);
    }
  }
}

function framedForget(room) {
  framedFar.delete(room);
  framedSight.unobserve(room);
}

function framedFill(view, size) {
  view.drawnFor = size;
  if (size[0]) view.drawNow(...size); // else it is not on the page yet, or its tab is hidden
}

function framedSize({ room }) {
  return [room.clientWidth, room.clientHeight];
}

function framedNear({ room }) {
  const { top, bottom } = room.getBoundingClientRect();
  return bottom >= -FRAMED_NEAR && top <= window.innerHeight + FRAMED_NEAR;
}
