import './app.css';
const reply = await fetch('api/v1/status');
document.querySelector('.boot').textContent = reply.ok ? `Kvasir ${(await reply.json()).version}` : `Kvasir — status answered ${reply.status}`;
